import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';

const ROOT = new URL('../..', import.meta.url).pathname;
/** Packages of earlier sources are deleted when no test can run them any more. */
const KEPT_MS = 24 * 3_600_000;

/** Installs the package in a folder as npm would, without sources. Returns its command. */
export function installPackage(target: string): string {
  execFileSync(process.execPath, [join(ROOT, 'src/build.ts'), join(target, 'dist')]);
  fs.cpSync(join(ROOT, 'bin'), join(target, 'bin'), { recursive: true });
  // Without it Node reads each file to detect modules.
  fs.copyFileSync(join(ROOT, 'package.json'), join(target, 'package.json'));
  fs.symlinkSync(join(ROOT, 'node_modules'), join(target, 'node_modules'));
  return join(target, 'bin', 'longshore');
}

/**
 * The package of the current sources, made once for all test files. An existing folder is complete.
 * Returns the folder.
 */
export function sharedPackage(): string {
  const folder = join(ROOT, 'node_modules', '.cache', 'longshore');
  const target = join(folder, `package-${sourcesHash()}`);
  if (fs.existsSync(target)) return target;
  removeOldPackages(folder);
  const own = `${target}.${process.pid}`;
  fs.rmSync(own, { recursive: true, force: true });
  fs.mkdirSync(own, { recursive: true });
  installPackage(own);
  try {
    fs.renameSync(own, target);
  } catch {
    // A concurrent test file was faster.
    fs.rmSync(own, { recursive: true, force: true });
  }
  return target;
}

/**
 * The command of {@link sharedPackage}. The package starts in half the CPU time of the sources.
 * Tests of their differences use `bin/longshore`. Some other tests do, too, so that the sources are
 * started.
 */
export const packagedProgram = (): string => join(sharedPackage(), 'bin/longshore');

/** Hashes all files of the package, because file times mean nothing after a checkout. */
function sourcesHash(): string {
  const hash = createHash('sha256');
  const add = (path: string): void => {
    const bytes = fs.readFileSync(join(ROOT, path));
    hash.update(`${path}\n${bytes.length}\n`).update(bytes);
  };
  for (const folder of ['bin', 'src']) {
    const entries = fs.readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true });
    const files = entries.filter((entry) => entry.isFile());
    for (const file of files.map(({ parentPath, name }) => join(parentPath, name)).sort()) {
      add(file.slice(ROOT.length));
    }
  }
  for (const file of ['package.json', 'package-lock.json']) add(file);
  return hash.digest('hex').slice(0, 16);
}

function removeOldPackages(folder: string): void {
  if (!fs.existsSync(folder)) return;
  for (const name of fs.readdirSync(folder)) {
    const path = join(folder, name);
    const age = Date.now() - (fs.statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Infinity);
    if (age > KEPT_MS) fs.rmSync(path, { recursive: true, force: true });
  }
}
