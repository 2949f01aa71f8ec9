import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { tempDirectory } from './kopia.ts';

/** A separate file system of a given size, which is removed when it is disposed. */
export interface SmallDisk extends Disposable {
  readonly path: string;
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
        // The disk is full.
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

/** Root may mount; most other users may not. */
export const canMount = process.getuid?.() === 0 && tryMount();
