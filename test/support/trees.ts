import * as fs from 'node:fs';
import { join } from 'node:path';
import { posix } from '../../src/base/index.ts';
import { noise } from './noise.ts';

/** A tree with various names, modes and links, times to the nanosecond, and file sizes. */
export function makeTree(root: string, seed: string, options: { bigBytes?: number } = {}): void {
  const file = (name: string, data: Uint8Array | string, mode = 0o644): void => {
    const path = join(root, name);
    fs.mkdirSync(join(path, '..'), { recursive: true });
    fs.writeFileSync(path, data);
    fs.chmodSync(path, mode);
  };
  fs.mkdirSync(root, { recursive: true });
  file('README', `hello ${seed}\n`);
  file('empty', '');
  file('bin/tool', '#!/bin/sh\n', 0o4755);
  file('text/repeated.txt', `the same words again, ${seed}. `.repeat(4000));
  file('text/日本語 <&>.txt', 'unicode');
  file('data/random-300k', noise(`${seed}-300k`, 300_000));
  file('data/copy-of-300k', noise(`${seed}-300k`, 300_000));
  file('data/big', noise(`${seed}-big`, options.bigBytes ?? 3_000_000));
  for (let i = 0; i < 40; i++) file(`many/${i % 4}/file-${i}`, noise(`${seed}-${i}`, 50 * i));
  fs.mkdirSync(join(root, 'an-empty-directory'));
  fs.symlinkSync('../README', join(root, 'text', 'link'));
  fs.symlinkSync('/nowhere/at/all', join(root, 'dangling'));
  fs.truncateSync(join(root, 'empty'), 0);
  const sparse = fs.openSync(join(root, 'data/sparse'), 'w');
  fs.ftruncateSync(sparse, 9_000_000);
  fs.writeSync(sparse, 'in the middle', 5_000_001);
  fs.closeSync(sparse);
  setTimes(root, 1_600_000_000_123_456_789n);
}

const O_PATH = 0o10000000;

/** Different times to the nanosecond everywhere, directories last. */
function setTimes(path: string, base: bigint): bigint {
  let next = base;
  const stat = fs.lstatSync(path);
  if (stat.isDirectory()) {
    for (const name of fs.readdirSync(path).sort())
      next = setTimes(join(path, name), next + 1_000_003n);
  }
  // The real Kopia restores the times of symbolic links to the microsecond only.
  const descriptor = fs.openSync(path, O_PATH | fs.constants.O_NOFOLLOW);
  posix().setPinnedTime(descriptor, stat.isSymbolicLink() ? next - (next % 1000n) : next);
  fs.closeSync(descriptor);
  return next;
}

/** Sets all times to an hour ago. The next backup rereads files of the last minutes. */
export function age(path: string | Buffer): void {
  if (fs.lstatSync(path).isDirectory()) {
    for (const name of fs.readdirSync(path, { encoding: 'buffer' })) {
      age(Buffer.concat([Buffer.from(path), Buffer.from('/'), name]));
    }
  }
  const seconds = Date.now() / 1000 - 3600;
  fs.lutimesSync(path, seconds, seconds);
}
