import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, it, vi } from 'vitest';
import { startUploadProgress } from '../../../src/cli/progress/upload-progress.ts';
import { newUploadCounters } from '../../../src/uploader/index.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { backUp, CLIENT, createTest, openTest } from '../../support/repositories.ts';

const work = tempDirectory('upload-progress');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const at = (name: string): string => join(work, name);
const FILES = 50;

let written: string[] = [];
const last = (): unknown => JSON.parse(written.at(-1) ?? '{}') as unknown;
beforeAll(async () => {
  fs.mkdirSync(at('tree'));
  for (let i = 0; i < FILES; i++) fs.writeFileSync(at(`tree/f${i}`), '1234567890');
  await createTest(at('repo'));
});
afterEach(() => {
  vi.restoreAllMocks();
});
function listen(): void {
  written = [];
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    written.push(String(text));
    return true;
  });
}
const source = { host: CLIENT.hostname, userName: CLIENT.username, path: at('tree') };
const POLL = { timeout: 60_000 };

it('an upload that takes its time is counted ahead, until it has listed all itself', async () => {
  await using repository = await openTest(at('repo'));
  const counters = { ...newUploadCounters(), filesFound: 1, bytesFound: 10, bytesRead: 5 };
  listen();
  const { signal } = new AbortController();
  const options = { repository, source, path: at('tree'), isBlock: false, counters, signal };
  const progress = await startUploadProgress('json', options);
  const about = { bytesTotal: 500, bytesTotalKind: 'about', filesTotal: FILES, percent: 1 };
  await expect.poll(last, POLL).toMatchObject(about);
  Object.assign(counters, { bytesFound: 50, isListed: true });
  const exact = { bytesTotal: 50, bytesTotalKind: 'exact', percent: 10 };
  await expect.poll(last, POLL).toMatchObject(exact);
  progress.stop();
  expect(last()).toMatchObject({ type: 'end', ...exact });
});

it('the last whole snapshot is the first guess', async () => {
  await using repository = await openTest(at('repo'));
  await backUp(repository, at('tree'));
  const counters = { ...newUploadCounters(), filesFound: 1, bytesFound: 10 };
  listen();
  const controller = new AbortController();
  controller.abort();
  const options = { repository, source, path: at('tree'), isBlock: false, counters };
  const progress = await startUploadProgress('json', { ...options, signal: controller.signal });
  progress.stop();
  const guess = { bytesTotal: 500, bytesTotalKind: 'about', filesTotal: FILES };
  expect(last()).toMatchObject({ type: 'end', percent: 0, ...guess });
});
