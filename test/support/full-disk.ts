import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { tempDirectory } from './kopia.ts';

/** A file system of its own with a size; away when disposed. */
export interface SmallDisk extends Disposable {
  readonly path: string;
  /** Leaves no byte free. */
  fill(): void;
}

export function mountSmallDisk(bytes: number): SmallDisk {
  const path = tempDirectory('small-disk');
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${bytes}`, 'tmpfs', path], { stdio: 'pipe' });
  return {
    path,
    fill() {
      const filler = fs.openSync(join(path, 'filler'), 'w');
      try {
        for (;;) fs.writeSync(filler, Buffer.alloc(4096, 1));
      } catch {
        // Full.
      } finally {
        fs.closeSync(filler);
      }
    },
    [Symbol.dispose]() {
      execFileSync('umount', ['-l', path]);
      fs.rmdirSync(path);
    },
  };
}

function tryMount(): boolean {
  try {
    mountSmallDisk(1 << 20)[Symbol.dispose]();
    return true;
  } catch {
    return false;
  }
}

/** Root may mount, most others may not. */
export const canMount = process.getuid?.() === 0 && tryMount();
