/*
 * velero-plugin-longshore: a program without any library, which starts the Node that lies in the folder `longshore` beside it with the
 * C library that lies there, too. Velero's image has neither Node nor a shell, and its C library is older than the one that Node's
 * other libraries need. Velero starts every file of its plugin folder that may be executed, so nothing in that folder is: not even the
 * dynamic loader, which the kernel would refuse to start then. It is mapped here, as the kernel would, and told to run Node.
 * image/plugin.sh compiles it; NODE_FLAGS is a list of strings, each with a comma after it.
 */
#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PATH_BYTES_MAX 4096
#define HEADERS_BYTES 4096
#define FOLDER "longshore/"

#if defined(__x86_64__)
#define MACHINE EM_X86_64
__asm__(".globl _start\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n and $-16,%rsp\n call launch\n hlt\n");
static long call(long number, long a, long b, long c, long d, long e, long f) {
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
static void __attribute__((noreturn)) enter(uintptr_t entry, long *stack) {
  __asm__ volatile("mov %1,%%rsp\n xor %%edx,%%edx\n xor %%ebp,%%ebp\n jmp *%0\n" : : "r"(entry), "r"(stack) : "rdx", "memory");
  __builtin_unreachable();
}
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
__asm__(".globl _start\n_start:\n mov x29,#0\n mov x30,#0\n mov x0,sp\n bl launch\n brk #0\n");
static long call(long number, long a, long b, long c, long d, long e, long f) {
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
static void __attribute__((noreturn)) enter(uintptr_t entry, long *stack) {
  __asm__ volatile("mov sp,%1\n mov x0,#0\n mov x29,#0\n mov x30,#0\n br %0\n" : : "r"(entry), "r"(stack) : "x0", "memory");
  __builtin_unreachable();
}
#else
#error "no launcher is made for this architecture"
#endif

static const char *const NODE_ARGUMENTS[] = {NODE_FLAGS};
#define NODE_ARGUMENTS_COUNT (sizeof NODE_ARGUMENTS / sizeof *NODE_ARGUMENTS)

static size_t length(const char *text) {
  size_t bytes = 0;
  while (text[bytes]) bytes++;
  return bytes;
}
static void say(const char *text) { call(SYS_write, 2, (long)text, length(text), 0, 0, 0); }

static void __attribute__((noreturn)) fail(const char *what, const char *path) {
  say("velero-plugin-longshore: ");
  say(what);
  say(path);
  say(": the folder longshore has to lie beside the plugin, as its image brings it\n");
  call(SYS_exit_group, 127, 0, 0, 0, 0, 0);
  __builtin_unreachable();
}

/* Puts folder, "longshore/" and name into a path; fails where it is too long. */
static void join(char *path, const char *folder, size_t folder_bytes, const char *name) {
  size_t at = 0;
  const char *parts[] = {FOLDER, name};
  if (folder_bytes + sizeof FOLDER + length(name) > PATH_BYTES_MAX) fail("too long a path: ", folder);
  for (size_t i = 0; i < folder_bytes; i++) path[at++] = folder[i];
  for (size_t part = 0; part < 2; part++)
    for (const char *c = parts[part]; *c; c++) path[at++] = *c;
  path[at] = 0;
}

static int failed(long result) { return result < 0 && result > -4096; }

static union {
  char bytes[HEADERS_BYTES];
  Elf64_Ehdr elf;
} head;

/* Maps the dynamic loader; its headers are in `head`. Gives where address 0 of the file is. */
static uintptr_t load(const char *path, uintptr_t page) {
  long file = call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
  if (failed(file)) fail("cannot open ", path);
  long read = call(SYS_pread64, file, (long)head.bytes, HEADERS_BYTES, 0, 0, 0);
  const Elf64_Ehdr *elf = &head.elf;
  if (read < (long)sizeof *elf || elf->e_ident[0] != 0x7f || elf->e_ident[1] != 'E' || elf->e_type != ET_DYN || elf->e_machine != MACHINE ||
      elf->e_phoff + elf->e_phnum * sizeof(Elf64_Phdr) > (size_t)read)
    fail("not a dynamic loader for this processor: ", path);
  const Elf64_Phdr *parts = (const Elf64_Phdr *)(head.bytes + elf->e_phoff);
  uintptr_t span = 0;
  for (int i = 0; i < elf->e_phnum; i++)
    if (parts[i].p_type == PT_LOAD && parts[i].p_vaddr + parts[i].p_memsz > span) span = parts[i].p_vaddr + parts[i].p_memsz;
  long base = call(SYS_mmap, 0, (span + page - 1) & -page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (failed(base)) fail("no memory for ", path);
  for (int i = 0; i < elf->e_phnum; i++) {
    const Elf64_Phdr *part = &parts[i];
    if (part->p_type != PT_LOAD) continue;
    int rights = (part->p_flags & PF_R ? PROT_READ : 0) | (part->p_flags & PF_W ? PROT_WRITE : 0) | (part->p_flags & PF_X ? PROT_EXEC : 0);
    uintptr_t begin = base + part->p_vaddr, in_page = begin & (page - 1);
    uintptr_t end_of_file = begin + part->p_filesz, end = begin + part->p_memsz;
    uintptr_t mapped = (end_of_file + page - 1) & -page;
    if (failed(call(SYS_mmap, begin - in_page, part->p_filesz + in_page, rights, MAP_PRIVATE | MAP_FIXED, file, part->p_offset - in_page)))
      fail("cannot map ", path);
    /* To the end of the page, as the kernel does it: the loader takes its first memory from there, and counts on zeros. */
    if (part->p_flags & PF_W)
      for (volatile char *zero = (char *)end_of_file; (uintptr_t)zero < mapped; zero++) *zero = 0;
    if (end > mapped && failed(call(SYS_mmap, mapped, end - mapped, rights, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0)))
      fail("no memory for ", path);
  }
  call(SYS_close, file, 0, 0, 0, 0, 0);
  return base;
}

void __attribute__((noreturn, used)) launch(long *stack) {
  static char own[PATH_BYTES_MAX], loader[PATH_BYTES_MAX], libraries[PATH_BYTES_MAX], node[PATH_BYTES_MAX], program[PATH_BYTES_MAX];
  long count = stack[0];
  char **arguments = (char **)(stack + 1), **environment = arguments + count + 1, **after = environment;
  while (*after) after++;
  Elf64_auxv_t *facts = (Elf64_auxv_t *)(after + 1);
  uintptr_t page = 4096;
  size_t facts_count = 1;
  for (Elf64_auxv_t *fact = facts; fact->a_type != AT_NULL; fact++, facts_count++)
    if (fact->a_type == AT_PAGESZ) page = fact->a_un.a_val;
  long bytes = call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)own, PATH_BYTES_MAX - 1, 0, 0);
  if (failed(bytes)) fail("cannot read ", "/proc/self/exe");
  while (bytes > 0 && own[bytes - 1] != '/') bytes--;
  join(loader, own, bytes, "ld.so");
  join(libraries, own, bytes, "");
  join(node, own, bytes, "node");
  join(program, own, bytes, "plugin.mjs");
  uintptr_t base = load(loader, page);

  /* As the kernel would lay it out for `ld.so --argv0 PLUGIN ... node FLAGS plugin.mjs ARGUMENTS`. */
  const char *first[] = {loader, "--argv0", count > 0 ? arguments[0] : own, "--inhibit-cache", "--library-path", libraries, node};
  size_t firsts = sizeof first / sizeof *first, rest = count > 1 ? count - 1 : 0;
  size_t new_count = firsts + NODE_ARGUMENTS_COUNT + 1 + rest;
  size_t words = 1 + new_count + 1 + (size_t)(after - environment) + 1 + facts_count * 2;
  long block[words + 1] __attribute__((aligned(16)));
  size_t at = 0;
  block[at++] = new_count;
  for (size_t i = 0; i < firsts; i++) block[at++] = (long)first[i];
  for (size_t i = 0; i < NODE_ARGUMENTS_COUNT; i++) block[at++] = (long)NODE_ARGUMENTS[i];
  block[at++] = (long)program;
  for (size_t i = 0; i < rest; i++) block[at++] = (long)arguments[i + 1];
  block[at++] = 0;
  for (char **variable = environment; variable < after; variable++) block[at++] = (long)*variable;
  block[at++] = 0;
  for (size_t i = 0; i < facts_count; i++) {
    long value = facts[i].a_un.a_val;
    switch (facts[i].a_type) {
    case AT_PHDR: value = base + head.elf.e_phoff; break;
    case AT_PHENT: value = head.elf.e_phentsize; break;
    case AT_PHNUM: value = head.elf.e_phnum; break;
    case AT_BASE: value = 0; break;
    case AT_ENTRY: value = base + head.elf.e_entry; break;
    }
    block[at++] = facts[i].a_type;
    block[at++] = value;
  }
  enter(base + head.elf.e_entry, block);
}
