"""The built-in models."""

from covey.registry import register_model

register_model(
    "mlp",
    "covey.networks.models:MlpModel",
    config="covey.networks.models:MlpConfig",
    description="dense layers",
    takes_dictionaries=True,
)
register_model(
    "cnn",
    "covey.networks.models:make_cnn",
    config="covey.networks.models:CnnConfig",
    description="convolutions over images [H, W, C], then dense layers",
    takes_dictionaries=True,
)
register_model(
    "gru",
    "covey.networks.models:make_gru",
    config="covey.networks.models:RecurrentConfig",
    description="gated recurrent unit between dense layers",
    takes_dictionaries=True,
)
register_model(
    "lstm",
    "covey.networks.models:make_lstm",
    config="covey.networks.models:RecurrentConfig",
    description="long short-term memory between dense layers",
    takes_dictionaries=True,
)
for _name, _class, _description in (
    ("gnn", "Gnn", "messages between the agents of a group: GATv2 or GraphConv, over all or those near"),
    ("attention", "Attention", "self-attention over agents, or over the rows of an observation"),
    ("deepsets", "DeepSets", "deep sets over agents, or over the rows of an observation"),
):
    register_model(
        _name,
        f"covey.networks.relational:{_class}Model",
        config=f"covey.networks.relational:{_class}Config",
        description=_description,
    )
register_model(
    "sequence",
    "covey.networks.sequence:make_sequence",
    config="covey.networks.sequence:SequenceConfig",
    description="models one after another, e.g. dense layers, messages between agents, a memory",
    takes_dictionaries=True,
)
