// refused: restore: rows of an external layout are the caller's

#include <kvx/kvx.hpp>
#include <kvx/store/memory_store.hpp>
#include <kvx/storing.hpp>

using outside = kvx::cache<kvx::host, kvx::spec<kvx::external<float, kvx::page_shape{}>>>;

void restore(outside& c, const kvx::host& exec, const kvx::memory_store& store) { (void)c.restore(exec, store, kvx::digest{}); }
