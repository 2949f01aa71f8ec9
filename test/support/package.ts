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

/**
 * The package of the present sources, laid out once for all test files: where it is there, it is complete.
 * Returns its folder.
 */
export function sharedPackage(): string {
  const newest = fs
    .readdirSync(join(ROOT, 'src'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => fs.statSync(join(entry.parentPath, entry.name)).mtimeMs)
    .reduce((a, b) => Math.max(a, b), 0);
  const target = join(ROOT, 'node_modules', '.cache', 'longshore', `package-${Math.round(newest)}`);
  if (fs.existsSync(target)) return target;
  const own = `${target}.${process.pid}`;
  fs.rmSync(own, { recursive: true, force: true });
  fs.mkdirSync(own, { recursive: true });
  installPackage(own);
  try {
    fs.renameSync(own, target);
  } catch {
    // Another test file was first.
    fs.rmSync(own, { recursive: true, force: true });
  }
  return target;
}
