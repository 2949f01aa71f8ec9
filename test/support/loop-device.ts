import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const attach = (image: string): string | undefined => {
  const result = spawnSync('losetup', ['--find', '--show', image], { encoding: 'utf8' });
  return result.status === 0 ? result.stdout.trim() : undefined;
};

/** Whether this machine allows block devices of files. */
export const hasLoopDevices = process.getuid?.() === 0 && probe();

function probe(): boolean {
  const directory = mkdtempSync(join(tmpdir(), 'loop-'));
  const image = join(directory, 'image');
  writeFileSync(image, Buffer.alloc(1 << 20));
  const device = attach(image);
  if (device !== undefined) execFileSync('losetup', ['--detach', device]);
  rmSync(directory, { recursive: true });
  return device !== undefined;
}

/** A block device with the bytes of the file, until it is disposed. */
export function loopDevice(image: string): { path: string } & AsyncDisposable {
  const path = attach(image);
  if (path === undefined) throw new Error(`no loop device for ${image}`);
  return {
    path,
    [Symbol.asyncDispose]: () => {
      execFileSync('sync');
      execFileSync('losetup', ['--detach', path]);
      return Promise.resolve();
    },
  };
}
