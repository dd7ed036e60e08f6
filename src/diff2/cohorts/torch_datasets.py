"""PyTorch's datasets and loaders as clients: read once, each record once, into tensors.

How a loader batches, shuffles and samples is not used: how a batch is drawn is part of the guarantee, so the algorithm
draws it. A random transform is drawn once, when its record is read.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from ..errors import InvalidArgument

LOG = logging.getLogger("diff2")
CHUNK_ROWS = 1024  # records that are collated together


def with_tensors(clients: Any, *, sizes_are_public: bool) -> Any:
    """Return clients with tensors in the place of every dataset and loader, and say so in the log, once for all.

    Args:
        sizes_are_public: whether the log may say how many records there are.
    """
    given = [clients] if isinstance(clients, Dataset | DataLoader) else clients
    if not isinstance(given, list | tuple):
        return clients
    read = [tensors_of(f"clients[{i}]", one) for i, one in enumerate(given)]
    pairs = [pair for pair, one in zip(read, given, strict=True) if pair is not one]
    if not pairs:
        return clients
    count = f"the {sum(len(targets) for _, targets in pairs):,} records" if sizes_are_public else "all records"
    text = f"clients: {count} of {len(pairs)} dataset{'s' * (len(pairs) > 1)} were read into tensors, once."
    if any(isinstance(one, DataLoader) for one in given):
        LOG.warning(
            "%s Batch size, shuffling and drop_last of a DataLoader are not used: the algorithm draws its batches from "
            "all records of the loader's dataset, as the guarantee requires",
            text,
        )
    else:
        LOG.info("%s", text)
    return read


def tensors_of(name: str, source: Any) -> Any:
    """Return (inputs, targets) of a dataset or loader, in the order of the dataset; anything else as it is."""
    if not isinstance(source, Dataset | DataLoader):
        return source
    dataset, collate = _unloaded(name, source) if isinstance(source, DataLoader) else (source, default_collate)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InvalidArgument(
            f"{name} is a dataset without numbered records and a length ({type(dataset).__name__}): how many there are "
            "must be known before the first one is used. Read it into tensors, TensorDataset(inputs, targets), first"
        )
    if isinstance(dataset, Subset) and len(set(dataset.indices)) < len(dataset.indices):
        raise InvalidArgument(
            f"{name} holds a record more than once, and a record that is used twice is protected half as well; leave "
            "repeated indices out of the subset"
        )
    if len(dataset) == 0:
        raise InvalidArgument(f"{name} holds no record; leave the client out, or check how its data was read")
    tensors = _tensors(dataset) if collate is default_collate else None
    return _read(name, dataset, collate) if tensors is None else _pair(name, tensors)


def _unloaded(name: str, loader: DataLoader[Any]) -> tuple[Any, Callable[[list[Any]], Any]]:
    """Return the dataset of a loader, and how it makes batches; refuse a sampler that may leave out or repeat some."""
    collate = default_collate if loader.batch_sampler is None else loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset, collate
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if type(sampler) is SubsetRandomSampler:
        return Subset(loader.dataset, list(sampler.indices)), collate
    every = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
    if not every:
        raise InvalidArgument(
            f"{name} is a DataLoader with a {type(sampler).__name__}, which may leave records out or repeat them, and "
            "a record that is used twice is protected half as well. Pass its dataset, or "
            "torch.utils.data.Subset(dataset, indices)"
        )
    return loader.dataset, collate


def _tensors(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors that a dataset, or the whole of which it is a subset, holds already."""
    if type(dataset) is TensorDataset:
        return dataset.tensors
    if type(dataset) is Subset:
        whole, indices = _tensors(dataset.dataset), torch.as_tensor(dataset.indices)
        return None if whole is None else tuple(tensor[indices.to(tensor.device)] for tensor in whole)
    return None


def _read(name: str, dataset: Any, collate: Callable[[list[Any]], Any]) -> Any:
    parts: list[Any] = []
    for start in range(0, len(dataset), CHUNK_ROWS):
        numbers = range(start, min(start + CHUNK_ROWS, len(dataset)))
        rows, failed = _quietly(lambda numbers: [dataset[number] for number in numbers], numbers)
        if failed:
            raise InvalidArgument(
                f"{name} cannot be read: its dataset raises {failed} for some record, and what that says is not "
                "passed on, because it may quote the record. Read the dataset once outside of diff2 to see it"
            )
        batch, failed = _quietly(collate, rows)
        if failed:
            break
        parts.append(_pair(name, batch))
    whole, failed = (None, failed) if failed else _quietly(_joined, parts)
    if failed:
        raise InvalidArgument(
            f"the records of {name} do not have one shape, or are not numbers, so they cannot become tensors; let the "
            "dataset return tensors of one shape, padded or cut to a public length"
        )
    return whole


def _quietly(action: Callable[[Any], Any], argument: Any) -> tuple[Any, str]:
    """Return what an action gives, or the kind of its error: what the error says may quote a record."""
    try:
        return action(argument), ""
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return None, type(error).__name__


def _pair(name: str, batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, Sequence) or isinstance(batch, str) or len(batch) != 2:
        found = f" of {len(batch)}" if isinstance(batch, Sequence) else ""
        raise InvalidArgument(
            f"expected the records of {name} to be pairs (input, target), got {type(batch).__name__}{found}; let the "
            "dataset return (input, target), or write (inputs, targets) in its place"
        )
    return batch[0], batch[1]


def _joined(parts: list[Any]) -> Any:
    """Return batches as one, whatever they are made of."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(list(column)) for column in zip(*parts, strict=True))
    return torch.cat([torch.as_tensor(part) for part in parts])
