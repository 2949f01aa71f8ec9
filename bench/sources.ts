import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/**
 * How large the files are: log-normal with a median of 4 KiB, or evenly between 300 and 1,800
 * bytes.
 */
export type FileSizes = 'small' | 'tiny';

export function makeRandom(path: string, bytes: number): void {
  execFileSync('bash', ['-c', `head -c ${bytes} /dev/urandom > '${path}'`]);
  age(path);
}

/**
 * Files that changed within the last minutes are read again by the next backup: these changed an
 * hour ago.
 */
export const age = (path: string): void =>
  void execFileSync('find', [path, '-exec', 'touch', '-h', '-d', '1 hour ago', '{}', '+']);

/**
 * Files below a directory. Their names and sizes come from a fixed seed, their bytes are random.
 */
export function makeFiles(directory: string, count: number, sizes: FileSizes = 'small'): void {
  const pool = Buffer.alloc(32 << 20);
  const poolPath = join(tmpdir(), `pool-${process.pid}`);
  makeRandom(poolPath, pool.length);
  fs.readFileSync(poolPath).copy(pool);
  fs.rmSync(poolPath);
  let state = 1;
  const random = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state + 0.5) / 2 ** 32;
  };
  const logNormal = (): number => {
    const normal = Math.sqrt(-2 * Math.log(random())) * Math.cos(2 * Math.PI * random());
    return Math.min(4 << 20, Math.round(4096 * Math.exp(1.36 * normal)));
  };
  const isTiny = sizes === 'tiny';
  const perFolder = isTiny ? 1000 : 100;
  let folder = '';
  for (let i = 0; i < count; i++) {
    if (i % perFolder === 0) {
      const thousand = join(directory, `d${Math.floor(i / 1000)}`);
      folder = isTiny ? thousand : join(thousand, `e${Math.floor(i / 100) % 10}`);
      fs.mkdirSync(folder, { recursive: true });
    }
    const bytes = isTiny ? Math.round(300 + 1500 * random()) : logNormal();
    const start = Math.floor(random() * (pool.length - bytes));
    fs.writeFileSync(join(folder, `f${i}`), pool.subarray(start, start + bytes));
  }
  age(directory);
}
