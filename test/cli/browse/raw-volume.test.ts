import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { OpenDevices } from '../../../src/cli/browse/device-volume.ts';
import { findFile } from '../../../src/cli/browse/find-file.ts';
import { tarOf } from '../../../src/cli/browse/tar.ts';
import type { VolumeFile } from '../../../src/cli/browse/volume-file.ts';
import type { Repository } from '../../../src/repository/index.ts';
import { imageOf } from '../../device-files/image.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, createTest, openTest } from '../../support/repositories.ts';
import { callsThrough, withCalls } from '../../support/with-calls.ts';

const work = tempDirectory('raw-volume');
const never = new AbortController().signal;

async function bytesOf(parts: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const all: Uint8Array[] = [];
  for await (const part of parts) all.push(part);
  return Buffer.concat(all);
}

describe('the files of a raw volume in a backup', () => {
  const devices = new OpenDevices();
  let repository: Repository;
  const snapshots = new Map<string, string>();
  beforeAll(async () => {
    await createTest(join(work, 'repository'), { splitter: 'FIXED-1M' });
    repository = await openTest(join(work, 'repository'));
    const images = {
      ext4: imageOf('ext4-4k'),
      used: imageOf('journal-3'),
      xfs: Buffer.alloc(1 << 20),
    };
    images.xfs.write('XFSB');
    for (const [name, bytes] of Object.entries(images)) {
      fs.writeFileSync(join(work, name), bytes);
      snapshots.set(name, (await backUp(repository, join(work, name), { block: true })).id);
    }
    // A volume with one file, which is an image.
    fs.mkdirSync(join(work, 'images'));
    fs.writeFileSync(join(work, 'images/disk.img'), images.ext4);
    snapshots.set('images', (await backUp(repository, join(work, 'images'))).id);
    await repository.flush();
  });
  afterAll(async () => {
    await repository.close();
    fs.rmSync(work, { recursive: true, force: true });
  });

  function find(name: string, ...path: string[]): Promise<VolumeFile> {
    const place = { volume: `shop/${name}`, path, signal: never };
    return findFile({ repository, devices }, snapshots.get(name) ?? '', place);
  }
  async function namesOf(file: VolumeFile): Promise<string[]> {
    const batches = await Array.fromAsync(file.list(never));
    return batches.flat().map(({ name }) => name);
  }

  it('are those of the file system on it, directories first', async () => {
    const root = await find('ext4');
    expect(await namesOf(root)).toEqual(['empty', 'etc', 'lost+found', 'many']);
    expect([root.entry.name, root.notes]).toEqual(['ext4', []]);
    const hosts = await find('ext4', 'etc', 'hosts');
    expect(hosts.entry).toMatchObject({
      type: 'f',
      mode: 0o640,
      uid: 2000,
      gid: 70000,
      sizeBytes: 20,
    });
    expect(String(await bytesOf(hosts.bytes(never)))).toBe('127.0.0.1 localhost\n');
    await expect(find('ext4', 'etc', 'none')).rejects.toMatchObject({
      code: 'PATH_NOT_FOUND',
      message: 'there is no /etc/none in volume shop/ext4',
    });
  });

  it('the root is the device as well', async () => {
    const root = await find('ext4');
    const image = fs.readFileSync(join(work, 'ext4'));
    expect(root.deviceBytes).toBe(image.length);
    expect((await bytesOf(root.bytes(never))).equals(image)).toBe(true);
    expect((await find('ext4', 'etc')).deviceBytes).toBeUndefined();
  });

  it('are downloaded as an archive', async () => {
    const left: string[] = [];
    const etc = await find('ext4', 'etc');
    const options = { signal: never, onLeftOut: (path: string) => left.push(path) };
    const bytes = await bytesOf(tarOf(etc, options));
    const target = join(work, 'unpacked');
    fs.mkdirSync(target);
    execFileSync('tar', ['-xp', '-C', target], { input: bytes });
    expect(fs.readlinkSync(join(target, 'deep/link'))).toBe('../hosts');
    expect(fs.statSync(join(target, 'deep/large')).size).toBe(300_000);
    expect(fs.readFileSync(join(target, 'deep/same'), 'utf8')).toBe('127.0.0.1 localhost\n');
    expect(left.sort()).toEqual(['null', 'pipe']);
  });

  it('whoever looks at one that was in use is told', async () => {
    const root = await find('used');
    expect(root.notes).toEqual([
      'it was in use when the snapshot was taken: files that were being written may be incomplete',
    ]);
    expect((await find('used', 'new')).notes).toEqual(root.notes);
  });

  it('where nobody can look into it, it is one file, and says why', async () => {
    const root = await find('xfs');
    expect(root.entry).toMatchObject({ name: 'xfs', type: 'f', sizeBytes: 1 << 20 });
    expect(root.notes).toEqual([
      'it holds an XFS file system, which is not read here: fetch the whole device, and open it there',
    ]);
    expect((await bytesOf(root.bytes(never))).length).toBe(1 << 20);
    await expect(find('xfs', 'etc')).rejects.toMatchObject({ code: 'DEVICE_NOT_READ' });
  });

  it('a volume whose only file is an image is a volume with a file', async () => {
    const root = await find('images');
    expect(await namesOf(root)).toEqual(['disk.img']);
  });

  it('looks that follow each other read its contents and its list once', async () => {
    const own = new OpenDevices();
    const asked: string[] = [];
    const { contents } = repository;
    const counting = callsThrough(contents, (call, [id], go) => {
      if (call === 'getContent') asked.push(id as string);
      return go();
    });
    const counted = withCalls(repository, { contents: counting });
    const place = { volume: 'shop/ext4', path: ['etc', 'deep', 'large'], signal: never };
    const look = async (): Promise<void> => {
      const file = await findFile(
        { repository: counted, devices: own },
        snapshots.get('ext4') ?? '',
        place,
      );
      expect((await bytesOf(file.bytes(never))).length).toBe(300_000);
    };
    await look();
    const data = asked.filter((id) => !/^[a-z]/.test(id) || id.length % 2 === 0);
    expect(new Set(data).size).toBe(data.length);
    asked.length = 0;
    await look();
    expect(asked.every((id) => id.startsWith('k') || id.startsWith('m'))).toBe(true);
  });
});
