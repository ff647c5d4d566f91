"""The registry of peers: each says what it is, takes the keys, and offers settings, from coarse to fine, that search them."""
import ctypes

import numpy as np

LINKS, GROWING, BREADTHS = 32, 200, (100, 200, 400, 800, 1600, 3200, 6400)
GRAPH = f"graph of {LINKS} links, {2 * LINKS} at the bottom, breadth {GROWING} while it grows; the setting is the breadth of a search"


class Setting:
    """One way to search: find(query) returns ids."""

    def __init__(self, peer, label, find):
        self.peer, self.label, self.find = peer, label, find


class Peer:
    name = what = ""

    def train(self, keys):
        pass

    def insert(self, keys):
        raise NotImplementedError

    def settings(self):
        raise NotImplementedError


def address(array):
    return array.ctypes.data_as(ctypes.c_void_p)


class Kvx(Peer):
    name = "kvx"
    what = ("sign sums propose a share of the keys (the setting, %), 4-bit codes rank them; "
            "kvx_exact: then the exact products of the best 200 by code")

    def __init__(self, shared, count, dim, best):
        self.shared, self.count, self.dim, self.best = shared, count, dim, best
        self.ids = np.empty(2 * best, np.int32)
        shared.kvx_open.restype = ctypes.c_void_p
        shared.kvx_find.restype = ctypes.c_int64
        self.search = ctypes.c_void_p(shared.kvx_open(ctypes.c_int64(count), ctypes.c_int64(2 * best)))

    def rows(self, queries):
        keys, asked = np.empty((self.count, self.dim), np.float32), np.empty((queries, self.dim), np.float32)
        self.shared.kvx_rows(self.search, address(keys), address(asked), ctypes.c_int64(queries))
        return keys, asked

    def insert(self, keys):
        self.shared.kvx_insert(self.search)

    def settings(self):
        def finder(percent, looks):
            best, share, looks, ids = ctypes.c_int64(self.best), ctypes.c_double(percent / 100), ctypes.c_int64(looks), address(self.ids)
            return lambda q: self.ids[:self.shared.kvx_find(self.search, address(q), best, share, looks, ids)]

        return [Setting(name, str(percent), finder(percent, looks))
                for name, looks in (("kvx", 0), ("kvx_exact", 2 * self.best)) for percent in (1, 2, 5, 10, 20)]


class KvxPages(Peer):
    name = "kvx_pages"
    what = ("pages of 16 similar keys, blocks of 256 packed by bisection, ranked by mean and spread; the setting is the share of the pages "
            "whose keys are looked at, %")

    def __init__(self, shared, count, dim, best):
        self.shared, self.count, self.best = shared, count, best
        self.ids = np.empty(best, np.int32)
        shared.kvx_pages_open.restype = ctypes.c_void_p
        shared.kvx_pages_find.restype = ctypes.c_int64
        self.search = ctypes.c_void_p(shared.kvx_pages_open(*(ctypes.c_int64(x) for x in (dim, count, best))))

    def insert(self, keys):
        self.shared.kvx_pages_insert(self.search, address(keys))

    def settings(self):
        def finder(percent):
            best, ids = ctypes.c_int64(self.best), address(self.ids)
            probes = ctypes.c_int64(max(1, self.count // 16 * percent // 100))
            return lambda q: self.ids[:self.shared.kvx_pages_find(self.search, address(q), best, probes, ids)]

        return [Setting(self.name, str(percent), finder(percent)) for percent in (1, 2, 4, 6, 10, 20, 40)]


class Hnswlib(Peer):
    name = "hnswlib"
    what = GRAPH

    def __init__(self, shared, count, dim, best):
        self.shared, self.count, self.dim, self.best = shared, count, dim, best
        self.ids = np.empty(best, np.int32)
        shared.hnswlib_open.restype = ctypes.c_void_p
        shared.hnswlib_find.restype = ctypes.c_int64
        self.search = ctypes.c_void_p(shared.hnswlib_open(*(ctypes.c_int64(x) for x in (dim, count, LINKS, GROWING))))

    def insert(self, keys):
        self.shared.hnswlib_insert(self.search, address(keys), ctypes.c_int64(self.dim), ctypes.c_int64(0), ctypes.c_int64(self.count))

    def settings(self):
        def finder(breadth):
            best, width, ids = ctypes.c_int64(self.best), ctypes.c_int64(breadth), address(self.ids)
            return lambda q: self.ids[:self.shared.hnswlib_find(self.search, address(q), best, width, ids)]

        return [Setting(self.name, str(breadth), finder(breadth)) for breadth in BREADTHS]


class Faiss(Peer):
    """An index of faiss. `tuned`: for each setting the name it is printed under, a label, the index that is searched, its parameters."""

    def __init__(self, faiss, name, what, index, best, tuned):
        self.faiss, self.name, self.index, self.best, self.tuned = faiss, name, index, best, tuned
        self.what = f"faiss {faiss.__version__}, {what}"
        self.products, self.ids = np.empty((1, best), np.float32), np.empty((1, best), np.int64)

    def train(self, keys):
        if not self.index.is_trained:
            self.index.train(keys)

    def insert(self, keys):
        self.index.add(keys)

    def settings(self):
        pointer = self.faiss.swig_ptr
        products, ids = pointer(self.products), pointer(self.ids)

        def finder(index, parameters):
            def find(q):
                index.search_c(1, pointer(q), self.best, products, ids, parameters)
                return self.ids[0]
            return find

        return [Setting(name, label, finder(index, parameters)) for name, label, index, parameters in self.tuned]


def faiss_flat(faiss, dim, best):
    product = faiss.METRIC_INNER_PRODUCT
    whole = faiss.IndexFlatIP(dim)
    yield Faiss(faiss, "faiss_flat", "all products in fp32", whole, best, [("faiss_flat", "all", whole, None)])
    half = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_bf16, product)
    yield Faiss(faiss, "faiss_flat_bf16", "all products, keys in bf16", half, best, [("faiss_flat_bf16", "all", half, None)])


def faiss_cells(faiss, dim, best):
    """Cells of product-quantised keys; the same index is searched with and without a look at the exact rows."""
    cells = faiss.index_factory(dim, "IVF1024,PQ64", faiss.METRIC_INNER_PRODUCT)
    cells.cp.max_points_per_centroid, cells.cp.niter = 64, 10
    cells.pq.cp.max_points_per_centroid, cells.pq.cp.niter = 64, 10
    looking = faiss.IndexRefineFlat(cells)
    probes = (16, 32, 64, 128, 256, 512, 1024)
    plain = [faiss.SearchParametersIVF(nprobe=n) for n in probes]
    exact = [faiss.IndexRefineSearchParameters(k_factor=10, base_index_params=p) for p in plain]
    tuned = [("faiss_ivfpq", str(n), cells, p) for n, p in zip(probes, plain)]
    tuned += [("faiss_ivfpq_exact", str(n), looking, p) for n, p in zip(probes, exact)]
    what = ("1,024 cells, 64 bytes a key, 64 keys a centroid and 10 rounds of training; the setting is the cells searched; "
            "faiss_ivfpq_exact: then the exact products of the best 1,000 by code")
    yield Faiss(faiss, "faiss_ivfpq", what, looking, best, tuned)


def faiss_graph(faiss, dim, best):
    graph = faiss.IndexHNSWFlat(dim, LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = GROWING
    tuned = [("faiss_hnsw", str(b), graph, faiss.SearchParametersHNSW(efSearch=b)) for b in BREADTHS]
    yield Faiss(faiss, "faiss_hnsw", GRAPH, graph, best, tuned)


def contestants(shared, count, dim, best):
    """kvx first: it makes the rows. What is not installed is left out."""
    peers = [Kvx(shared, count, dim, best), KvxPages(shared, count, dim, best)]
    if hasattr(shared, "hnswlib_open"):
        peers.append(Hnswlib(shared, count, dim, best))
    else:
        print("# hnswlib is left out: its headers were not found", flush=True)
    try:
        import faiss
    except ImportError as error:
        print(f"# faiss is left out: {error}", flush=True)
        return peers
    faiss.omp_set_num_threads(1)
    for family in (faiss_flat, faiss_cells, faiss_graph):
        peers += family(faiss, dim, best)
    return peers
