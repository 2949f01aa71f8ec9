import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { textOfName } from '../../src/base/index.ts';
import { openDevice } from '../../src/device-files/index.ts';
import { bytesOf, fileAt, imageOf, MemoryDevice, namesIn, never, treeText } from './image.ts';

const open = (name: string) => openDevice(new MemoryDevice(imageOf(name)), never);
const KINDS: Readonly<Record<string, string>> = { l: 's' };

/** As `find` wrote it: texts of the bytes of names; times as mke2fs stores them, in 32 bits. */
function expectedTree(): string[] {
  return treeText()
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => {
      const [
        path = '',
        kind = '',
        mode = '',
        owner = '',
        size = '',
        time = '',
        link = '',
        sum = '',
      ] = line.split('\t');
      const seconds = BigInt.asIntN(32, BigInt(time.split('.')[0] ?? ''));
      const bytes = kind === 'f' || kind === 'l' ? size : '0';
      const name = textOfName(Buffer.from(path, 'latin1'));
      const type = KINDS[kind] ?? kind;
      return [name, type, mode, owner, bytes, seconds, link, sum].join(' ');
    })
    .sort();
}

async function treeOf(name: string): Promise<string[]> {
  const root = await open(name);
  const lines: string[] = [];
  for await (const { file, path } of root.walk(never)) {
    const { type, mode, uid, gid, size, mtimeNs } = file.entry;
    if (path === '' || path === 'lost+found') continue;
    const bytes = await bytesOf(file);
    const link = type === 's' ? bytes.toString('latin1') : '';
    const sum = type === 'f' ? createHash('sha256').update(bytes).digest('hex') : '-';
    const seconds = mtimeNs / 1_000_000_000n;
    lines.push([path, type, mode.toString(8), `${uid}:${gid}`, size, seconds, link, sum].join(' '));
  }
  return lines.sort();
}

describe('the files of an ext2, ext3 or ext4 file system', () => {
  it.each([
    'ext2-old',
    'ext2-1k',
    'ext3-4k',
    'ext4-4k',
    'ext4-1k-inline',
    'ext4-meta-bg',
    'ext4-bigalloc',
    'ext4-64k',
  ])('%s holds what went into it', async (name) => {
    expect(await treeOf(name)).toEqual(expectedTree());
  });

  it('a directory of 5,000 names with an index is read to its end, and a name found in it', async () => {
    const root = await open('ext4-many');
    const names = await fileAt(root, 'names');
    const all = await namesIn(names);
    expect([all.length, new Set(all).size]).toEqual([5000, 5000]);
    const name = 'a name that is rather long, number 04321';
    expect((await names.find({ name }, never))?.entry).toMatchObject({ name, type: 'f', size: 0 });
    expect(await names.find({ name: 'another one' }, never)).toBeUndefined();
  });

  it('holes and blocks that were never written are zeros, and cost no reads', async () => {
    const device = new MemoryDevice(imageOf('ext4-many'));
    const root = await openDevice(device, never);
    const half = await bytesOf(await fileAt(root, 'half'));
    expect(half.length).toBe(60_000);
    expect(half.subarray(0, 4).toString()).toBe('here');
    expect(half.subarray(4).every((byte) => byte === 0)).toBe(true);
    const tib = await fileAt(root, 'tib');
    expect(tib.entry.size).toBe(2 ** 40);
    const before = device.reads;
    const start = await bytesOf(tib, 100 << 20);
    expect(start.every((byte) => byte === 0)).toBe(true);
    // The block of the end, which is read ahead.
    expect(device.reads - before).toBeLessThanOrEqual(1);
  });

  it('times are read to the nanosecond, and beyond 2038', async () => {
    const { entry } = await fileAt(await open('ext4-many'), 'attributes');
    expect(entry.mtimeNs).toBe((2n ** 32n + 16n) * 1_000_000_000n + 125_000_000n);
  });

  it('names that are not UTF-8 are shown with their bytes, and found by them', async () => {
    const etc = await fileAt(await open('ext4-4k'), 'etc');
    const entries = (await Array.fromAsync(etc.list(never))).flat();
    const broken = entries.find(({ name }) => name.startsWith('a'));
    expect(broken?.name).toBe(String.raw`a\xff\xfe`);
    const wanted = { name: broken?.name ?? '', id: broken?.id };
    const found = await etc.find(wanted, never);
    expect(found && String(await bytesOf(found))).toBe('x');
    expect(await etc.find({ ...wanted, id: 'inode-1' }, never)).toBeUndefined();
  });

  it('nothing is in what is no directory, and what has no bytes has none', async () => {
    const root = await open('ext4-4k');
    const hosts = await fileAt(root, 'etc/hosts');
    expect(await hosts.find({ name: 'x' }, never)).toBeUndefined();
    expect(await namesIn(hosts)).toEqual([]);
    expect((await bytesOf(await fileAt(root, 'etc/null'))).length).toBe(0);
    expect(root.notes).toEqual([]);
  });
});

describe('a file system that was in use', () => {
  it.each(['journal-1', 'journal-3'])('%s is read as after a mount', async (name) => {
    const root = await open(name);
    expect((await namesIn(root)).sort()).toEqual(['a', 'escaped', 'lost+found', 'new']);
    expect(await bytesOf(await fileAt(root, 'new'))).toEqual(Buffer.alloc(4096, 'N'));
    const escaped = await bytesOf(await fileAt(root, 'escaped'));
    expect(escaped.toString('hex', 0, 5)).toBe('c03b39984e');
    expect(await namesIn(await fileAt(root, 'a'))).toEqual([]);
    // A block of it was in the journal once, and was given back since.
    expect(await namesIn(await fileAt(root, 'lost+found'))).toEqual([]);
    expect(root.notes.join()).toContain('it was in use when the snapshot was taken');
  });

  it.each([
    [0, ['without a journal']],
    [1, []],
    [3, ['Linux has noted errors in it']],
    [2, ['without a journal', 'Linux has noted errors in it']],
  ])('without a journal it says so itself: state %i', async (state, texts) => {
    const image = imageOf('ext2-old');
    image.writeUInt16LE(state, 1024 + 0x3a);
    const { notes } = await openDevice(new MemoryDevice(image), never);
    expect(notes).toEqual(texts.map((text) => expect.stringContaining(text) as string));
  });

  it('what was not committed does not count', async () => {
    const image = imageOf('journal-3');
    // The last commit: a mark, its kind, the number of the third transaction.
    const sequences = [...commitsOf(image)];
    const [last = 0] = sequences.slice(-1);
    image.fill(0, last, last + 4096);
    const root = await openDevice(new MemoryDevice(image), never);
    expect((await namesIn(root)).sort()).toEqual(['a', 'lost+found']);
    expect(await namesIn(await fileAt(root, 'a'))).toEqual(['old']);
  });

  it('a block of the journal that is not what was written is told of', async () => {
    const image = imageOf('journal-3');
    const at = image.indexOf(Buffer.alloc(4096, 'N'));
    image[at + 100] = 0;
    const root = await openDevice(new MemoryDevice(image), never);
    await expect(fileAt(root, 'new').then((file) => bytesOf(file))).rejects.toMatchObject({
      code: 'DEVICE_DAMAGED',
      message: expect.stringContaining('in its journal is wrong') as string,
    });
  });
});

function* commitsOf(image: Buffer): Generator<number> {
  const mark = Buffer.from('c03b399800000002', 'hex');
  for (let at = image.indexOf(mark); at >= 0; at = image.indexOf(mark, at + 1)) {
    if (at % 4096 === 0) yield at;
  }
}
