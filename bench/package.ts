import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';

const ROOT = new URL('..', import.meta.url).pathname;

/**
 * The package as npm would install it: bundles and launcher, no sources. Returns the path of its
 * command.
 */
export function installPackage(target: string): string {
  execFileSync(process.execPath, [join(ROOT, 'src/build.ts'), join(target, 'dist')]);
  fs.cpSync(join(ROOT, 'bin'), join(target, 'bin'), { recursive: true });
  // Says that its files are modules: Node would find that out by parsing each.
  fs.cpSync(join(ROOT, 'package.json'), join(target, 'package.json'));
  fs.symlinkSync(join(ROOT, 'node_modules'), join(target, 'node_modules'));
  // As in the image.
  fs.writeFileSync(join(target, 'node-is-checked'), '');
  return join(target, 'bin', 'longshore');
}
