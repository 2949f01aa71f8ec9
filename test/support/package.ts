import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';

const ROOT = new URL('../..', import.meta.url).pathname;

/** Lays the package out in a folder as npm would install it, without sources; returns its command. */
export function installPackage(target: string): string {
  execFileSync(process.execPath, [join(ROOT, 'src/build.ts'), join(target, 'dist')]);
  fs.cpSync(join(ROOT, 'bin'), join(target, 'bin'), { recursive: true });
  fs.symlinkSync(join(ROOT, 'node_modules'), join(target, 'node_modules'));
  return join(target, 'bin', 'longshore');
}
