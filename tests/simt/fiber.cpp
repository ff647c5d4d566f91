// Fibers: their stacks, the switch between them, and what the sanitizers are told about it.

#include <sys/mman.h>
#include <unistd.h>

#include "state.hpp"

#include <cstdlib>

extern "C" void simt_swap(void** save, void* load);

#if !defined(__x86_64__)
#error "add a switch routine for this processor"
#endif
asm(R"(
.text
.globl simt_swap
.type simt_swap,@function
simt_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_swap,.-simt_swap
)");

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

engine sm;

void to_main(bool dying) {
  fiber* f = sm.cur;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(dying ? nullptr : &f->fake_stack, sm.main_bottom, sm.main_size);
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(sm.main_tsan, 1);
  simt_swap(&f->sp, sm.main_sp);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(f->fake_stack, nullptr, nullptr);
}

void to_fiber(fiber& f) {
  sm.cur = &f;
  threadIdx = f.thread;
  ++stats().switches;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&sm.main_fake, f.stack, stack_bytes);
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(f.tsan, 1);
  simt_swap(&sm.main_sp, f.sp);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(sm.main_fake, nullptr, nullptr);
  sm.cur = nullptr;
}
static void entry() {
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(nullptr, &sm.main_bottom, &sm.main_size);
  acquire(&sm.launch_tag);
  if (sm.start_tag) acquire(sm.start_tag);
  try {
    (*sm.body)();
  } catch (const std::exception& e) {
    sm.failure = e.what();
  }
  release(sm.end_tag);
  release(&sm.done_tag);
  sm.cur->st = state::done;
  to_main(true);
  std::abort();
}

void prepare(fiber& f, unsigned tid) {
  if (!f.stack) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    char* p =
        static_cast<char*>(mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED) throw std::bad_alloc();
    mprotect(p, page, PROT_NONE);
    f.stack = p + page;
  }
  if (__tsan_create_fiber && !f.tsan) f.tsan = __tsan_create_fiber(0);
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(f.stack, stack_bytes);
  auto** top = reinterpret_cast<void**>(f.stack + stack_bytes);
  *--top = nullptr;                                // fake return address: entry sees rsp % 16 == 8
  *--top = reinterpret_cast<void*>(&entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  f.sp = top;
  f.fake_stack = nullptr;
  f.tid = tid;
  f.st = state::ready;
  f.grp = nullptr;
  f.thread = {tid % blockDim.x, tid / blockDim.x % blockDim.y, tid / (blockDim.x * blockDim.y)};
}

}  // namespace simt
