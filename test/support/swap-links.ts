/**
 * `node swap-links.ts TARGET OUTSIDE NAME...`: puts symbolic and hard links to outside files at
 * these names in the target, and removes them again. Repeats until it is killed.
 */
import * as fs from 'node:fs';
import { join } from 'node:path';

const [target = '', outside = '', ...names] = process.argv.slice(2);
const secret = join(outside, 'secret');
const directory = join(outside, 'directory');
let made = 0;

function attempt(step: () => void): void {
  try {
    step();
  } catch {
    // The restore was faster.
  }
}

console.log('swapping');
for (;;) {
  for (const name of names) {
    const path = join(target, name);
    const link = join(target, `.swap-${made++}`);
    attempt(() => {
      if (made % 3 === 0) fs.linkSync(secret, link);
      else fs.symlinkSync(made % 3 === 1 ? secret : directory, link);
    });
    attempt(() => {
      if (fs.lstatSync(path).isDirectory()) fs.renameSync(path, `${link}-aside`);
    });
    attempt(() => {
      fs.renameSync(link, path);
    });
    attempt(() => {
      fs.rmSync(link, { force: true });
    });
    if (made % 7 === 0) attempt(() => fs.unlinkSync(path));
    attempt(() => {
      fs.rmSync(`${link}-aside`, { recursive: true, force: true });
    });
  }
}
