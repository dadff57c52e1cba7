"""Models that look at all agents of a group together: `gnn`, `attention`, `deepsets`.

They take observations `[…, A, F]` and give each agent its own features `[…, A, num_features]`, with the same parameters
for any number of agents and in any order. `attention` and `deepsets` can look at the rows of each agent's own
observation instead, `[…, A, N, F]`: entities, for example. If entities lie one after another in a flat observation,
`rows` says where.
"""

from __future__ import annotations

import dataclasses
import enum

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from covey.errors import UnfitInput, UsageError
from covey.networks.layers import LayersConfig, Mlp, make_linear
from covey.types import Array


class Over(enum.Enum):
    """What the elements of a set are."""

    agents = "the agents of the group"
    rows = "the rows of each agent's own observation"


class Aggregation(enum.Enum):
    """How the features of several elements become one."""

    add = "add"  # the sum
    mean = "mean"  # the mean
    max = "max"  # the largest of each feature


def aggregate(kind: Aggregation, x: Array, mask: Array | np.ndarray, axis: int) -> Array:
    """Aggregates `x` over `axis`, where `mask` (broadcast) is true; zero if that is nowhere."""
    match kind:
        case Aggregation.add:
            return jnp.sum(jnp.where(mask, x, 0.0), axis)
        case Aggregation.mean:
            count = jnp.sum(jnp.broadcast_to(mask, x.shape), axis)
            return jnp.sum(jnp.where(mask, x, 0.0), axis) / jnp.maximum(count, 1)
        case Aggregation.max:
            largest = jnp.max(jnp.where(mask, x, -jnp.inf), axis)
            return jnp.where(jnp.isfinite(largest), largest, 0.0)


# -------------------------------------------------------------------------------------------------------------- gnn


class Topology(enum.Enum):
    """Which agents hear which."""

    full = "every agent hears every other"
    empty = "nobody hears anybody"
    radius = "agents hear those within a distance"


class GraphLayer(enum.Enum):
    """A layer of messages between agents."""

    graph_conv = "GraphConv (Morris et al., 2019): own features plus the aggregated neighbours', each times a matrix"
    gatv2 = "GATv2 (Brody et al., 2022): neighbours weighted by attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GnnConfig(LayersConfig):
    """Messages between agents. Positions and velocities are entries of the observation, given by their indices."""

    topology: Topology = Topology.full  # which agents hear each other
    # distance within which agents hear each other; only for topology=radius, which needs it
    edge_radius: float | None = None
    # indices of the position in the observation; edges then carry differences and distances; null: unknown
    position: tuple[int, ...] | None = None
    # indices of the velocity in the observation; edges then carry differences; null: unknown
    velocity: tuple[int, ...] | None = None
    layer: GraphLayer = GraphLayer.gatv2  # kind of message layer
    aggregation: Aggregation = Aggregation.mean  # how neighbours' messages are combined; only for layer=graph_conv
    num_layers: int = 1  # rounds of messages, from 1 up
    num_heads: int = 4  # heads of attention, from 1 up; must divide `hidden_size`; only for layer=gatv2
    layers: tuple[int, ...] = (128,)  # sizes of the dense layers before messages
    hidden_size: int = 128  # size of a message, from 1 up
    layers_after: tuple[int, ...] = (128,)  # sizes of the dense layers after messages

    def __post_init__(self) -> None:
        if self.topology is Topology.radius and (self.edge_radius is None or self.position is None):
            raise ValueError("topology=radius needs edge_radius, and position: which entries of the observation it is")
        if self.num_layers < 1 or self.hidden_size < 1 or self.num_heads < 1:
            raise ValueError("num_layers, hidden_size and num_heads must be at least 1")
        if self.layer is GraphLayer.gatv2 and self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} does not split over num_heads={self.num_heads}")

    @property
    def reads_team(self) -> bool:
        return True


class GraphConv(nnx.Module):
    """h_i' = W h_i + aggregate_j (U h_j + E e_ij)."""

    def __init__(self, inputs: int, edges: int, config: GnnConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        self.aggregation = config.aggregation
        self.own = make_linear(inputs, size, config.initialiser, rngs)
        self.others = make_linear(inputs, size, config.initialiser, rngs)
        self.edges = make_linear(edges, size, config.initialiser, rngs) if edges else None

    def __call__(self, h: Array, edge: Array | None, adjacent: Array) -> Array:
        message = self.others(h)[..., None, :, :]  # [.., i, j, H]
        message = jnp.broadcast_to(message, (*adjacent.shape, message.shape[-1]))
        if self.edges is not None and edge is not None:
            message = message + self.edges(edge)
        return self.own(h) + aggregate(self.aggregation, message, adjacent[..., None], -2)


class Gatv2(nnx.Module):
    """h_i' = Σ_j softmax_j(a · leaky(W h_i + U h_j + E e_ij)) U h_j, over itself and its neighbours, head by head."""

    def __init__(self, inputs: int, edges: int, config: GnnConfig, rngs: nnx.Rngs):
        size, self.num_heads = config.hidden_size, config.num_heads
        self.own = make_linear(inputs, size, config.initialiser, rngs)
        self.others = make_linear(inputs, size, config.initialiser, rngs)
        self.edges = make_linear(edges, size, config.initialiser, rngs) if edges else None
        self.attention = nnx.Param(
            jax.random.normal(rngs.params(), (config.num_heads, size // config.num_heads)) / np.sqrt(size)
        )

    def __call__(self, h: Array, edge: Array | None, adjacent: Array) -> Array:
        num_agents = adjacent.shape[-1]
        heard = adjacent | jnp.eye(num_agents, dtype=bool)
        own, others = self.own(h), self.others(h)
        pair = own[..., :, None, :] + others[..., None, :, :]
        if self.edges is not None and edge is not None:
            pair = pair + self.edges(edge)
        pair = jax.nn.leaky_relu(pair, 0.2).reshape(*pair.shape[:-1], self.num_heads, -1)
        score = jnp.sum(pair * self.attention[...], -1)  # [.., i, j, heads]
        weight = jax.nn.softmax(jnp.where(heard[..., None], score, -jnp.inf), axis=-2)
        values = others.reshape(*others.shape[:-1], self.num_heads, -1)
        return jnp.einsum("...ijk,...jkd->...ikd", weight, values).reshape(*own.shape)


class GnnModel(nnx.Module):
    """Dense layers, messages between agents, dense layers: features `[…, A, F]`, each agent's own."""

    def __init__(self, config: GnnConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        if len(input_shape) != 1:
            raise UnfitInput("gnn", "observations [F]", input_shape)
        for name in ("position", "velocity"):
            entries = getattr(config, name) or ()
            if any(not -input_shape[0] <= i < input_shape[0] for i in entries):
                raise UsageError(
                    f"model 'gnn': {name}={list(entries)} must be indices into observations of {input_shape[0]} numbers"
                )
        self.config = config
        edges = (len(config.position) + 1 if config.position else 0) + (len(config.velocity) if config.velocity else 0)
        self.before = Mlp(input_shape[0], config.layers, config, rngs)
        layer = GraphConv if config.layer is GraphLayer.graph_conv else Gatv2
        sizes = [self.before.num_features] + [config.hidden_size] * (config.num_layers - 1)
        self.messages = nnx.List([layer(size, edges, config, rngs) for size in sizes])
        self.after = Mlp(config.hidden_size, config.layers_after, config, rngs)
        self.num_features = self.after.num_features

    def __call__(self, x: Array) -> Array:
        edge, adjacent = self._edges(x)
        h = self.before(x)
        for layer in self.messages:
            h = jax.nn.relu(layer(h, edge, adjacent))
        return self.after(h)

    def _edges(self, x: Array) -> tuple[Array | None, Array]:
        """Features `[.., A, A, E]` of the way from each agent i to each j, and who hears whom `[.., A, A]`."""
        config, num_agents = self.config, x.shape[-2]
        shape = (*x.shape[:-2], num_agents, num_agents)
        features, distance = [], None
        if config.position:
            position = x[..., np.array(config.position)]
            way = position[..., None, :, :] - position[..., :, None, :]
            distance = jnp.sqrt(jnp.sum(jnp.square(way), -1) + 1e-12)
            features += [way, distance[..., None]]
        if config.velocity:
            velocity = x[..., np.array(config.velocity)]
            features.append(velocity[..., None, :, :] - velocity[..., :, None, :])
        others = jnp.broadcast_to(~jnp.eye(num_agents, dtype=bool), shape)
        match config.topology:
            case Topology.full:
                adjacent = others
            case Topology.empty:
                adjacent = jnp.zeros(shape, bool)
            case Topology.radius:
                assert distance is not None and config.edge_radius is not None
                adjacent = others & (distance <= config.edge_radius)
        return jnp.concatenate(features, -1) if features else None, adjacent


# -------------------------------------------------------------------------------------------- attention and deep sets


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetConfig(LayersConfig):
    """Fields of models over sets: of agents, or of the rows of an observation."""

    over: Over = Over.agents  # what the elements of a set are
    # where rows lie in a flat observation: [first entry, number, size]; the rest of it is appended to each row; null:
    # the observation has rows; only for over=rows
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.rows is None:
            return
        if self.over is not Over.rows:
            raise ValueError("rows needs over=rows")
        if len(self.rows) != 3 or self.rows[0] < 0 or min(self.rows[1:]) < 1:
            raise ValueError(f"rows takes the first entry, the number and the size of rows, not {list(self.rows)}")

    @property
    def reads_team(self) -> bool:
        return self.over is Over.agents


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionConfig(SetConfig):
    """Self-attention (Vaswani et al., 2017) over agents, or over the rows of an observation, whose features are then
    averaged."""

    num_layers: int = 1  # blocks of attention, from 1 up
    num_heads: int = 4  # heads of attention, from 1 up; must divide `hidden_size`
    hidden_size: int = 128  # size of the features that attend to each other
    layers_after: tuple[int, ...] = (128,)  # sizes of the dense layers after attention

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers < 1 or self.num_heads < 1:
            raise ValueError("num_layers and num_heads must be at least 1")
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} does not split over num_heads={self.num_heads}")


class AttentionBlock(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: AttentionConfig, rngs: nnx.Rngs):
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.norms = nnx.List([nnx.LayerNorm(size, rngs=rngs) for _ in range(2)])
        self.project = make_linear(size, 3 * size, config.initialiser, rngs, gain=1.0)
        self.out = make_linear(size, size, config.initialiser, rngs, gain=1.0)
        self.mlp = Mlp(size, (size,), config, rngs)

    def __call__(self, x: Array) -> Array:
        def heads(y: Array) -> Array:
            return y.reshape(*y.shape[:-1], self.num_heads, -1)

        query, key, value = (heads(part) for part in jnp.split(self.project(self.norms[0](x)), 3, axis=-1))
        score = jnp.einsum("...ikd,...jkd->...kij", query, key) / np.sqrt(query.shape[-1])
        seen = jnp.einsum("...kij,...jkd->...ikd", jax.nn.softmax(score), value)
        x = x + self.out(seen.reshape(*x.shape))
        return x + self.mlp(self.norms[1](x))


class AttentionModel(nnx.Module):
    """Self-attention over the elements of a set, then dense layers. With rows, their features are averaged."""

    def __init__(self, config: AttentionConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        self.over, self.rows = config.over, config.rows
        input_shape = _shape_of_rows("attention", config, input_shape)
        self.embed = make_linear(input_shape[-1], config.hidden_size, config.initialiser, rngs)
        self.blocks = nnx.List([AttentionBlock(config, rngs) for _ in range(config.num_layers)])
        self.after = Mlp(config.hidden_size, config.layers_after, config, rngs)
        self.num_features = self.after.num_features

    def __call__(self, x: Array) -> Array:
        x = self.embed(split_rows(x, self.rows))
        for block in self.blocks:
            x = block(x)
        if self.over is Over.rows:
            x = x.mean(axis=-2)
        return self.after(x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepSetsConfig(SetConfig):
    """Deep sets (Zaheer et al., 2017): f(aggregate of g(x)) over the rows of an observation. Over agents, f also sees
    the agent's own g(x), so that each has features of its own."""

    layers: tuple[int, ...] = (128, 128)  # sizes of the dense layers applied to each element before aggregation
    layers_after: tuple[int, ...] = (128,)  # sizes of the dense layers applied to the aggregate
    aggregation: Aggregation = Aggregation.mean  # how elements' features are combined


class DeepSetsModel(nnx.Module):
    """Dense layers for each element, their aggregate, and dense layers after it."""

    def __init__(self, config: DeepSetsConfig, input_shape: tuple[int, ...], rngs: nnx.Rngs):
        self.over, self.rows, self.aggregation = config.over, config.rows, config.aggregation
        input_shape = _shape_of_rows("deepsets", config, input_shape)
        self.local = Mlp(input_shape[-1], config.layers, config, rngs)
        width = self.local.num_features * (2 if config.over is Over.agents else 1)
        self.after = Mlp(width, config.layers_after, config, rngs)
        self.num_features = self.after.num_features

    def __call__(self, x: Array) -> Array:
        local = self.local(split_rows(x, self.rows))
        pooled = aggregate(self.aggregation, local, np.ones((), bool), -2)
        if self.over is Over.rows:
            return self.after(pooled)
        everyone = jnp.broadcast_to(pooled[..., None, :], local.shape)
        return self.after(jnp.concatenate([local, everyone], -1))


def split_rows(x: Array, rows: tuple[int, ...] | None) -> Array:
    """`[…, F]` as `[…, N, size + rest]`: each row with everything outside of the rows. Without `rows`, `x` itself."""
    if rows is None:
        return x
    start, number, size = rows
    stop = start + number * size
    each = x[..., start:stop].reshape(*x.shape[:-1], number, size)
    rest = jnp.concatenate([x[..., :start], x[..., stop:]], -1)[..., None, :]
    return jnp.concatenate([each, jnp.broadcast_to(rest, (*each.shape[:-1], rest.shape[-1]))], -1)


def _shape_of_rows(name: str, config: SetConfig, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an observation after `split_rows`; raises if it has no such rows."""
    flat = config.over is Over.agents or config.rows is not None
    if len(input_shape) != (1 if flat else 2):
        instead = "over=rows" if config.over is Over.agents else "rows=[first, number, size]" if not flat else ""
        needs = f"observations {'[F]' if flat else '[N, F]'} over {config.over.name}"
        raise UnfitInput(name, needs, input_shape, instead=instead)
    if config.rows is None:
        return input_shape
    start, number, size = config.rows
    if start + number * size > input_shape[0]:
        raise UsageError(f"model '{name}': rows={list(config.rows)} is beyond observations of {input_shape[0]}")
    return number, input_shape[0] - (number - 1) * size
