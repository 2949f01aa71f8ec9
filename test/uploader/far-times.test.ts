import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { parseGoTime, posix } from '../../src/base/index.ts';
import { readDirectory } from '../../src/snapshot/index.ts';
import { hasKopia, Kopia, tempDirectory } from '../support/kopia.ts';
import {
  backUp,
  createTest,
  openTest,
  PASSWORD,
  recordingLogger,
  restore,
} from '../support/repositories.ts';

const work = tempDirectory('far-times');
/** Memory: ext4 has no times before 1901 and after 2446. */
const memory = fs.mkdtempSync('/dev/shm/longshore-far-times-');
afterAll(() => {
  fs.rmSync(work, { recursive: true, force: true });
  fs.rmSync(memory, { recursive: true, force: true });
});
const at = (name: string): string => join(work, name);

const TIMES = {
  year1: '0001-01-01T00:00:00Z',
  year1600: '1600-02-29T12:00:00.000000001Z',
  year1969: '1969-12-31T23:59:59.5Z',
  year2300: '2300-01-01T00:00:00.123456789Z',
  year9999: '9999-12-31T23:59:59Z',
};

function setTime(path: string, timeNs: bigint): void {
  const descriptor = fs.openSync(path, 'r');
  posix().setDescriptorTime(descriptor, timeNs);
  fs.closeSync(descriptor);
}

function tree(name: string): string {
  const path = join(memory, name);
  fs.mkdirSync(join(path, 'directory'), { recursive: true });
  for (const [file, time] of Object.entries(TIMES)) {
    fs.writeFileSync(join(path, file), file);
    setTime(join(path, file), parseGoTime(time));
  }
  // Several contents, which are written in parts.
  fs.writeFileSync(join(path, 'large'), Buffer.alloc(20 << 20, 'x'));
  setTime(join(path, 'large'), parseGoTime(TIMES.year2300));
  setTime(join(path, 'directory'), parseGoTime(TIMES.year1600));
  return path;
}

it('restores times before 1677 and after 2262 as they were', async () => {
  const path = tree('tree');
  await createTest(at('repository'));
  await using repository = await openTest(at('repository'), { threads: true });
  const { rootEntry } = await backUp(repository, path);
  const target = join(memory, 'target');
  await restore(repository, rootEntry, target);
  const times = (root: string): string[] =>
    fs.readdirSync(root).map((name) => {
      const { mtimeNs } = fs.statSync(join(root, name), { bigint: true });
      return `${name} ${mtimeNs}`;
    });
  expect(times(target)).toEqual(times(path));
});

it('stores the nearest time for one that an entry cannot have, and warns', async () => {
  const path = join(memory, 'beyond');
  fs.mkdirSync(path);
  fs.writeFileSync(join(path, 'late'), 'late');
  fs.writeFileSync(join(path, 'early'), 'early');
  setTime(join(path, 'late'), 300_000_000_000n * 1_000_000_000n);
  setTime(join(path, 'early'), -300_000_000_000n * 1_000_000_000n);
  await createTest(at('beyond'));
  await using repository = await openTest(at('beyond'), { threads: true });
  const logger = recordingLogger();
  const { rootEntry } = await backUp(repository, path, { logger });
  const entries = await readDirectory(repository, rootEntry.objectId);
  expect(entries.map(({ mtimeNs }) => mtimeNs)).toEqual([
    parseGoTime('0000-01-01T00:00:00Z'),
    parseGoTime('9999-12-31T23:59:59Z'),
  ]);
  const warnings = logger.messages.filter((text) => text.includes('0 to 9999'));
  expect(warnings).toHaveLength(2);
});

it.skipIf(!hasKopia)('are no reason for the real Kopia to refuse a snapshot', async () => {
  const path = tree('for-kopia');
  const kopia = new Kopia(PASSWORD).create(at('kopia'));
  const id = await (async () => {
    await using repository = await openTest(at('kopia'), { threads: true });
    return (await backUp(repository, path)).id;
  })();
  kopia.verifyAll();
  kopia.run('snapshot', 'list', '--all');
  kopia.run('snapshot', 'restore', id, at('kopia-restored'));
  expect(fs.readFileSync(at('kopia-restored/year2300'), 'utf8')).toBe('year2300');
});
