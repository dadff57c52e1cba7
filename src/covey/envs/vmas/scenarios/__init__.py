"""One file per scenario: its fields, its world, how it starts, what it pays and what is seen."""
