import * as fs from 'node:fs';

/** False for a kernel that was built without them. */
export const hasHugePages = (): boolean => fs.existsSync('/sys/kernel/mm/transparent_hugepage');

/** Bytes of this process for which huge pages were requested. */
export const hugeBytes = (): number =>
  fs
    .readFileSync('/proc/self/smaps', 'utf8')
    .split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m)
    .filter((mapping) => /^VmFlags:.* hg( |$)/m.test(mapping))
    .reduce((sum, mapping) => sum + Number(/^Size: +(\d+) kB/m.exec(mapping)?.[1]) * 1024, 0);
