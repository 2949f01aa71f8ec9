import { describe, expect, it } from 'vitest';
import {
  maintenanceSample,
  repositorySample,
  restoreSample,
  treeSample,
} from '../../../src/cli/progress/samples.ts';
import { type Guesses, uploadSample } from '../../../src/cli/progress/upload-progress.ts';
import { TaskProgress } from '../../../src/repository/index.ts';
import { newTreeCounters } from '../../../src/snapshot/index.ts';
import { newRestoreCounters, newUploadCounters } from '../../../src/uploader/index.ts';

const summary = { size: 900, files: 9, symlinks: 2, dirs: 3, maxTimeNs: 0n, numFailed: 0 };

describe('how much there is of an upload', () => {
  const counters = { ...newUploadCounters(), filesFound: 4, bytesFound: 400 };
  const previous = { files: 9, bytes: 900 };
  const estimate = (state: 'counting' | 'whole' | 'given-up'): Guesses['estimate'] => ({
    files: 7,
    bytes: 700,
    state,
  });
  it.each<[string, object, Guesses, [number, number, string]]>([
    ['nothing is known: what was found', {}, {}, [400, 4, 'atLeast']],
    ['the estimate counts', {}, { estimate: estimate('counting') }, [700, 7, 'atLeast']],
    ['it gave up', {}, { estimate: estimate('given-up') }, [700, 7, 'atLeast']],
    ['it is through', {}, { estimate: estimate('whole') }, [700, 7, 'about']],
    ['the last snapshot comes first', {}, { previous }, [900, 9, 'about']],
    [
      'it counts beside the last snapshot',
      {},
      { previous, estimate: estimate('counting') },
      [900, 9, 'about'],
    ],
    [
      'and is better once it is through',
      {},
      { previous, estimate: estimate('whole') },
      [700, 7, 'about'],
    ],
    ['more was found', { bytesFound: 800 }, { estimate: estimate('whole') }, [800, 7, 'about']],
    [
      'the upload has listed all',
      { isListed: true },
      { previous, estimate: estimate('whole') },
      [400, 4, 'exact'],
    ],
  ])('%s', (_, more, guesses, [bytes, files, kind]) => {
    const sample = uploadSample({ ...counters, ...more }, guesses);
    expect(sample.bytes?.total).toEqual({ value: bytes, kind });
    expect(sample.items.total).toEqual({ value: files, kind });
  });

  it('cached bytes and holes are done, and not read', () => {
    const sample = uploadSample(
      { ...counters, bytesRead: 10, cachedBytes: 100, bytesInHoles: 50, totalBytes: 100 },
      {},
    );
    expect(sample).toMatchObject({ bytes: { done: 160 }, movedBytes: 10 });
  });

  it('says what comes after the reading', () => {
    const read = { ...counters, isListed: true, files: 2, cachedFiles: 1, errors: 1 };
    expect(uploadSample({ ...read, files: 1 }, {}).phase).toBeUndefined();
    expect(uploadSample(read, {}).phase).toBe('finishing');
    expect(uploadSample({ ...read, objectsChecked: 1 }, {}).phase).toBe('checking what is stored');
  });
});

describe('how much there is of a restore', () => {
  const counters = {
    ...newRestoreCounters(),
    files: 2,
    skipped: 1,
    bytes: 300,
    bytesSkipped: 100,
    filesFound: 5,
    bytesFound: 500,
  };
  it.each([
    ['the summary tells', { type: 'd', size: 0, summary }, [900, 9, 'exact']],
    ['a file tells itself', { type: 'f', size: 77 }, [77, 1, 'exact']],
    ['an object that was named by its id', { type: 'd', size: 0 }, [500, 5, 'atLeast']],
  ])('%s', (_, root, [bytes, files, kind]) => {
    const sample = restoreSample(counters, root);
    expect(sample).toMatchObject({
      bytes: { done: 300, total: { value: bytes, kind } },
      items: { done: 3, total: { value: files, kind } },
      movedBytes: 200,
    });
  });
  it('a part that was selected is found on the way', () => {
    const sample = restoreSample(counters, { type: 'd', size: 0, summary }, true);
    expect(sample.bytes?.total).toEqual({ value: 500, kind: 'atLeast' });
  });
  it('says that it waits for the disk', () => {
    const sample = restoreSample({ ...counters, isFlushing: true }, { type: 'f', size: 1 });
    expect(sample.phase).toBe('flushing to disk');
  });
});

describe('how much there is of a check', () => {
  const trees = { ...newTreeCounters(), objects: 7, bytesRead: 70, problemCount: 1 };
  it('of a snapshot: its entries, or its bytes where they are read', () => {
    expect(treeSample(trees, { summary }, false)).toMatchObject({
      bytes: undefined,
      items: { done: 7, total: { value: 14, kind: 'about' } },
      errors: 1,
    });
    const read = treeSample(trees, { summary }, true);
    expect(read.bytes).toEqual({ done: 70, total: { value: 900, kind: 'about' } });
    expect(treeSample(trees, {}, true).bytes).toEqual({ done: 70 });
  });
  it('of a repository: its contents first, then the trees', () => {
    const contents = { contents: 3, packs: 1, bytesRead: 30 };
    const none = newTreeCounters();
    expect(repositorySample(contents, none, { contents: 10, errors: 2 })).toMatchObject({
      bytes: undefined,
      items: { noun: 'contents', done: 3, total: { value: 10, kind: 'exact' } },
      errors: 2,
    });
    const whole = { contents: 10, packedBytes: 100, errors: 2 };
    expect(repositorySample(contents, none, whole)).toMatchObject({
      bytes: { done: 30, total: { value: 100, kind: 'exact' } },
      movedBytes: 30,
    });
    expect(repositorySample(contents, trees, whole)).toEqual({
      phase: 'snapshots',
      items: { noun: 'objects', done: 7 },
      errors: 3,
    });
  });
});

it('maintenance tells its task', () => {
  const tasks = new TaskProgress();
  expect(maintenanceSample(tasks)).toMatchObject({ phase: 'preparing' });
  tasks.begin('full-rewrite-contents', 'packs', 40);
  tasks.done = 12;
  expect(maintenanceSample(tasks)).toEqual({
    phase: 'full-rewrite-contents',
    items: { noun: 'packs', done: 12, total: { value: 40, kind: 'exact' } },
    errors: 0,
  });
});
