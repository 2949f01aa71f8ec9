import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { waitForRestores } from '../../../src/cli/node-agent/restore-helper.ts';
import { tempDirectory } from '../../support/kopia.ts';

const directory = tempDirectory('restore-helper');
afterAll(() => {
  fs.rmSync(directory, { recursive: true, force: true });
});

const mark = (volume: string, uid: string): void => {
  fs.mkdirSync(join(directory, volume, '.velero'), { recursive: true });
  fs.writeFileSync(join(directory, volume, '.velero', uid), '');
};

it('waits for the mark of this restore in each volume, and removes the marks', async () => {
  const lines: string[] = [];
  const { signal } = new AbortController();
  mark('one', 'uid');
  // A mark of an earlier restore.
  mark('two', 'other');
  fs.writeFileSync(join(directory, 'no-volume'), '');
  let isOver = false;
  const waiting = waitForRestores({
    uid: 'uid',
    directory,
    lookMs: 5,
    signal,
    print: (line) => lines.push(line),
  }).then(() => (isOver = true));
  await expect.poll(() => lines.length).toBeGreaterThan(2);
  expect(isOver).toBe(false);
  expect(lines[0]).toBe(
    `The filesystem restore done file ${directory}/two/.velero/uid is not found yet. Retry later.`,
  );
  mark('two', 'uid');
  await waiting;
  expect(lines.at(-1)).toBe('All PodVolumeRestores are done');
  expect(fs.existsSync(join(directory, 'one', '.velero'))).toBe(false);
  expect(fs.existsSync(join(directory, 'two', '.velero'))).toBe(false);
});

it('is done at once without volumes, and ends when it is told to', async () => {
  const empty = join(directory, 'empty');
  fs.mkdirSync(empty);
  const abort = new AbortController();
  const options = { uid: 'uid', lookMs: 5, print: () => undefined, signal: abort.signal };
  await waitForRestores({ ...options, directory: empty });
  const waiting = waitForRestores({ ...options, uid: 'never', directory });
  abort.abort(new Error('told'));
  await expect(waiting).rejects.toThrow(/abort/i);
});
