import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import {
  assertMounted,
  assertSameVolume,
  identityOf,
  isOwnFileSystem,
  rootMountedAt,
} from '../../src/mover/same-volume.ts';

let work: string;
let volume: string;
beforeEach(() => {
  work = fs.mkdtempSync(join(tmpdir(), 'longshore-same-'));
  volume = join(work, 'volume');
  fs.mkdirSync(volume);
});
afterEach(() => {
  fs.rmSync(work, { recursive: true, force: true });
});

it('a volume that nothing happened to is the same, whatever changed in it', async () => {
  const before = await identityOf(volume);
  fs.writeFileSync(join(volume, 'new'), 'x');
  await assertSameVolume(volume, before, 'read');
});

it.each([
  ['removed', () => fs.rmdirSync(volume)],
  [
    'replaced by another one',
    () => {
      fs.renameSync(volume, join(work, 'away'));
      fs.mkdirSync(volume);
    },
  ],
])('a volume that was %s is not', async (_what, change) => {
  const before = await identityOf(volume);
  change();
  await expect(assertSameVolume(volume, before, 'read')).rejects.toMatchObject({
    code: 'VOLUME_GONE',
    message: `the volume was unmounted or removed while it was being read: ${volume}`,
  });
});

it('a directory that was removed while somebody holds it is not the volume any more', async () => {
  const held = fs.openSync(volume, 'r');
  try {
    const path = `/proc/self/fd/${held}/.`;
    const before = await identityOf(path);
    await assertSameVolume(path, before, 'written');
    fs.rmdirSync(volume);
    await expect(assertSameVolume(path, before, 'written')).rejects.toThrow(
      /while it was being written/,
    );
  } finally {
    fs.closeSync(held);
  }
});

it('a directory of a larger file system is none of its own', async () => {
  expect(await isOwnFileSystem(volume)).toBe(false);
  expect(await isOwnFileSystem('/proc')).toBe(true);
});

it('the mount table says which part of a file system is mounted', () => {
  const table = [
    '22 1 8:1 / / rw - ext4 /dev/sda1 rw',
    '40 22 8:1 /var/lib/kubelet/pods/p/volumes/kubernetes.io~empty-dir/v /u-1 rw master:1 - ext4 /dev/sda1 rw',
    '41 22 8:2 / /u-2 rw - ext4 /dev/sdb rw',
    '42 22 8:3 /a\\040b /with\\040space rw - ext4 /dev/sdc rw',
    '43 22 8:4 /first /twice rw - ext4 /dev/sdd rw',
    '44 43 8:5 / /twice rw - ext4 /dev/sde rw',
    '',
  ].join('\n');
  expect(rootMountedAt('/u-1', table)).toMatch(/empty-dir\/v$/);
  expect(rootMountedAt('/u-2', table)).toBe('/');
  expect(rootMountedAt('/with space', table)).toBe('/a b');
  expect(rootMountedAt('/twice', table)).toBe('/');
  expect(rootMountedAt('/none', table)).toBeUndefined();
});

describe('what the kubelet has mounted on a directory of its own', () => {
  const pods = '/pods/1b9d/volumes';
  const shown = (root: string): Promise<string> =>
    Promise.resolve(`71 60 8:1 ${root} /volume rw - ext4 /dev/sda1 rw`);
  it.each([
    '/',
    '/data/pv-1',
    '/srv/volumes/pv-1',
    `${pods}/kubernetes.io~empty-dir/cache`,
    '/1b9d/volumes/kubernetes.io~git-repo/checkout',
    // A directory of a volume, in which another cluster's kubelet has its volumes.
    `${pods}/kubernetes.io~csi/pv-1/mount/data`,
  ])('is the volume where the mount shows %s', async (root) => {
    await assertMounted('/volume', shown(root));
  });

  it.each([
    `${pods}/kubernetes.io~csi/pv-1/mount`,
    `/var/lib/kubelet${pods}/kubernetes.io~nfs/share`,
    `${pods}/kubernetes.io~local-volume/pv-2`,
    // The kubelet's directory of pods is a disk of its own, or a link to elsewhere.
    '/1b9d/volumes/kubernetes.io~csi/pv-1/mount',
    '/data/kubelet-pods/1b9d/volumes/kubernetes.io~csi/pv-1/mount',
    '/1b9d/volumes/example.com~fast/pv-1',
  ])('is missing where the mount shows %s, as after a reboot', async (root) => {
    await expect(assertMounted('/volume', shown(root))).rejects.toMatchObject({
      code: 'VOLUME_GONE',
    });
  });
});
