"""Networks: the only folder that imports flax. The rest of covey sees `Network(init, apply, initial_carry)`."""
