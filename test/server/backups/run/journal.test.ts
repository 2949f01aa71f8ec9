import * as fs from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { afterAll, describe, expect, it } from 'vitest';
import {
  EncryptingBucket,
  journalsFolder,
  readTarball,
  signingBy,
} from '../../../../src/archive/index.ts';
import { CodedError, type Logger, silentLogger } from '../../../../src/base/index.ts';
import type { FinishedItem } from '../../../../src/backup/index.ts';
import type { Backup } from '../../../../src/kube/index.ts';
import {
  BackupJournal,
  type BackupJournalOptions,
} from '../../../../src/server/backups/run/journal.ts';
import { readUnfinishedRun } from '../../../../src/server/backups/run/unfinished-run.ts';
import { removeJournals } from '../../../../src/server/runs/journal.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { MemoryBucket } from '../../../support/memory-bucket.ts';

const scratch = tempDirectory('journal');
afterAll(() => {
  fs.rmSync(scratch, { recursive: true, force: true });
});
const signal = new AbortController().signal;

const item = (name: string, more: Partial<FinishedItem> = {}): FinishedItem => ({
  kind: 'v1/Pod',
  namespace: 'a',
  name,
  operations: [],
  facts: [],
  hasFailed: false,
  owesPostHooks: false,
  hasEffect: false,
  files: [
    { path: `resources/pods/namespaces/a/${name}.json`, bytes: Buffer.from(`{"${name}":1}`) },
  ],
  ...more,
});
const EFFECT = { hasEffect: true };

function opened(
  bucket: MemoryBucket,
  more: Partial<BackupJournalOptions> = {},
): Promise<BackupJournal> {
  return BackupJournal.open({
    bucket,
    name: 'b1',
    uid: 'u1',
    directory: scratch,
    logger: silentLogger,
    signal,
    isSealed: false,
    assertLeading: () => undefined,
    patienceMs: 100,
    ...more,
  });
}

async function pathsOf(journal: BackupJournal): Promise<string[]> {
  const { contents } = await journal.finish();
  const entries = await Array.fromAsync(readTarball(contents.read(), 'contents'));
  return entries.map(({ path }) => path.split('/').at(-1) ?? '');
}

const BACKUP = { metadata: { name: 'b1', uid: 'u1' }, spec: {} } as Backup;
const FOLDER = 'backups/b1/longshore-journal/u1/';
/** Without the random part of each process. */
const keysOf = (bucket: MemoryBucket): string[] =>
  [...bucket.objects.keys()]
    .map((key) => key.slice(FOLDER.length).replace(/-[0-9a-f]{8}-/, '-'))
    .sort();
const keyLike = (bucket: MemoryBucket, pattern: RegExp): string =>
  [...bucket.objects.keys()].find((key) => pattern.test(key)) ?? '';

describe('the journal of a backup', () => {
  it('makes no tarball that is too long to be read, also where several tries make it', async () => {
    const bucket = new MemoryBucket();
    const limits = { segmentBytes: 1 << 20, segmentMs: 60_000, unpackedBytesMax: 3000 };
    {
      await using first = await opened(bucket, { limits });
      await first.put(item('one', EFFECT));
      for (let i = 0; i < 100; i++) first.addLine('lines of the log are none of the tarball\n');
      await first.put(item('two', EFFECT));
    }
    await using second = await opened(bucket, { limits });
    await expect(second.put(item('three'))).rejects.toMatchObject({ code: 'CONTENT_TOO_LONG' });
  });
  it('of tens of thousands of segments is removed many at once', async () => {
    const bucket = new MemoryBucket();
    for (let i = 0; i < 600; i++) bucket.objects.set(`${FOLDER}${i}`, Buffer.from('x'));
    let [now, most] = [0, 0];
    const slow = {
      list: (prefix: string) => bucket.list(prefix),
      delete: async (key: string) => {
        most = Math.max(most, ++now);
        await new Promise(setImmediate);
        await bucket.delete(key);
        now--;
      },
    } as unknown as MemoryBucket;
    await removeJournals(slow, FOLDER, signal);
    expect(bucket.objects.size).toBe(0);
    expect(most).toBe(16);
  });

  it('has in the bucket what had an effect elsewhere, before the call returns, and the rest with it', async () => {
    const bucket = new MemoryBucket();
    await using journal = await opened(bucket);
    expect(keysOf(bucket)).toEqual(['00000001-00000000']);
    await journal.put(item('plain'));
    expect(keysOf(bucket)).toHaveLength(1);
    await journal.put(item('effect', EFFECT));
    expect(keysOf(bucket)).toHaveLength(2);
    await using next = await opened(bucket);
    expect(next.isDone('v1/Pod', 'a/plain')).toBe(true);
    expect(next.isDone('v1/Pod', 'a/effect')).toBe(true);
    expect(next.isDone('v1/Pod', 'a/other')).toBe(false);
  });

  it('stores plain items after a while, and when there are many', async () => {
    const bucket = new MemoryBucket();
    await using journal = await opened(bucket, { limits: { segmentBytes: 3000, segmentMs: 20 } });
    await journal.put(item('one'));
    await expect.poll(() => keysOf(bucket).length).toBe(2);
    await using large = await opened(bucket, { limits: { segmentBytes: 3000, segmentMs: 60_000 } });
    const before = keysOf(bucket).length;
    for (let i = 0; i < 4; i++) await large.put(item(`many-${i}`));
    expect(keysOf(bucket).length).toBeGreaterThan(before);
  });

  it('gives back all that another server must know', async () => {
    const bucket = new MemoryBucket();
    const operation = {
      action: 'x/y',
      operationId: 'op',
      postOperationItems: [],
      item: { group: '', resource: 'pods', namespace: 'a', name: 'p' },
    };
    {
      await using journal = await opened(bucket);
      journal.addLine('first line\n');
      journal.addEntry({ level: 'warn', namespace: 'a', text: 'careful' });
      journal.hooksRan({ hooksAttempted: 2, hooksFailed: 1 });
      await journal.put(
        item('p', {
          operations: [operation],
          facts: [{ kind: 'x' }],
          owesPostHooks: true,
          hasEffect: true,
        }),
      );
      await journal.put(item('q', { owesPostHooks: true }));
      await journal.postHooksDone({ kind: 'v1/Pod', namespace: 'a', name: 'q' });
      await journal.put(item('failed', { files: [], hasFailed: true }));
      await journal.flush();
    }
    await using next = await opened(bucket);
    expect(next.isContinued).toBe(true);
    expect(next.operations).toMatchObject([operation]);
    expect([next.facts, next.entries]).toEqual([
      [{ kind: 'x' }],
      [{ level: 'warn', namespace: 'a', text: 'careful' }],
    ]);
    expect(next.hooks).toEqual({ hooksAttempted: 2, hooksFailed: 1 });
    expect([...next.owed()]).toEqual([{ namespace: 'a', name: 'p' }]);
    expect(next.owesPostHooks('v1/Pod', 'a/p')).toBe(true);
    expect(next.owesPostHooks('v1/Pod', 'a/q')).toBe(false);
    expect([...next.all()]).toEqual([
      { kind: 'v1/Pod', id: 'a/p', type: 'pods' },
      { kind: 'v1/Pod', id: 'a/q', type: 'pods' },
      { kind: 'v1/Pod', id: 'a/failed', type: undefined },
    ]);
    next.addLine('second line\n');
    await next.put(item('r', EFFECT));
    const { contents, log } = await next.finish();
    const paths = (await Array.fromAsync(readTarball(contents.read(), 'c'))).map(
      ({ path }) => path,
    );
    expect(paths.map((path) => path.split('/').at(-1))).toEqual([
      'version',
      'p.json',
      'q.json',
      'r.json',
    ]);
    const text = gunzipSync(Buffer.concat(await Array.fromAsync(log.read()))).toString('utf8');
    expect(text).toBe('first line\nsecond line\n');
  });

  it('knows pods whose pre hooks may have run, until they are done with', async () => {
    const bucket = new MemoryBucket();
    const pod = (name: string) => ({ kind: 'v1/Pod', namespace: 'a', name });
    {
      // Killed before any of them is stored as an item.
      await using journal = await opened(bucket);
      for (const name of ['left', 'thawed', 'failed']) await journal.willFreeze(pod(name));
      await journal.postHooksDone(pod('thawed'));
      await journal.put(item('failed', { files: [], hasFailed: true }));
      await journal.postHooksDone(pod('failed'));
      // Stored with another item, while it is frozen.
      await journal.put(item('left'));
      await journal.flush();
      expect(journal.owed()).toEqual([{ namespace: 'a', name: 'left' }]);
    }
    const left = await readUnfinishedRun({ bucket, backup: BACKUP, logger: silentLogger, signal });
    expect(left.frozen).toEqual([{ namespace: 'a', name: 'left' }]);
    await using next = await opened(bucket);
    expect(next.owed()).toEqual(left.frozen);
    expect(next.owesPostHooks('v1/Pod', 'a/left')).toBe(true);
  });

  it('reads nothing that a process stored late which did not lead any more', async () => {
    const bucket = new MemoryBucket();
    await using old = await opened(bucket);
    await old.put(item('one', EFFECT));
    await using leader = await opened(bucket);
    await leader.put(item('two', EFFECT));
    // The old process slept, and does not know about the new one.
    await old.put(item('late', EFFECT));
    await using third = await opened(bucket);
    expect(await pathsOf(third)).toEqual(['version', 'one.json', 'two.json']);
  });

  it('goes by the one that knows more, of two processes that took the same number', async () => {
    const bucket = new MemoryBucket();
    await using first = await opened(bucket);
    await first.put(item('one', EFFECT));
    // A process's first segment is in transit during a takeover, and arrives last.
    const sleeper = new MemoryBucket();
    for (const [key, bytes] of bucket.objects) sleeper.objects.set(key, bytes);
    await (await opened(sleeper))[Symbol.asyncDispose]();
    await first.put(item('last', EFFECT));
    await using leader = await opened(bucket);
    await leader.put(item('two', EFFECT));
    for (const [key, bytes] of sleeper.objects)
      if (!bucket.objects.has(key)) bucket.objects.set(key, bytes);
    expect(keysOf(bucket).filter((key) => key === '00000002-00000000')).toHaveLength(2);
    await using third = await opened(bucket);
    expect(await pathsOf(third)).toEqual(['version', 'one.json', 'last.json', 'two.json']);
  });

  it('tells which operations it has, also where a part of it cannot be read', async () => {
    const bucket = new MemoryBucket();
    await using journal = await opened(bucket);
    const operation = (operationId: string) => ({
      action: 'x/y',
      operationId,
      postOperationItems: [],
      item: { group: '', resource: 'pods', namespace: 'a', name: 'p' },
    });
    await journal.put(item('one', { operations: [operation('op-1')], hasEffect: true }));
    await journal.put(item('two', { operations: [operation('op-2')], hasEffect: true }));
    bucket.objects.set(keyLike(bucket, /00000001$/), Buffer.from('x'));
    const { operations: found } = await readUnfinishedRun({
      bucket,
      backup: BACKUP,
      logger: silentLogger,
      signal,
    });
    expect(found.map(({ operationId }) => operationId)).toEqual(['op-2']);
  });

  it('goes by the last whole try, and by no segment behind a gap', async () => {
    const bucket = new MemoryBucket();
    {
      await using first = await opened(bucket);
      await first.put(item('one', EFFECT));
    }
    // Killed before its first segment was stored.
    bucket.objects.set(`${FOLDER}00000002-0badcafe-00000001`, Buffer.from('x'));
    await using next = await opened(bucket);
    expect(await pathsOf(next)).toEqual(['version', 'one.json']);
    expect(keysOf(bucket).at(-1)).toMatch(/^00000003-/);
  });

  it.each([
    ['is cut off', (bytes: Buffer) => bytes.subarray(0, bytes.length - 1), 'its length is wrong'],
    [
      'has another bit',
      (bytes: Buffer) =>
        Buffer.concat([bytes.subarray(0, -1), Buffer.from([(bytes.at(-1) ?? 0) ^ 1])]),
      'its checksum is wrong',
    ],
    ['is something else', () => Buffer.from('hello'), 'it is no segment of a journal'],
    ['is gone', () => undefined, 'was stored, and is gone'],
  ])('says which segment cannot be read when it %s', async (_, change, text) => {
    const bucket = new MemoryBucket();
    {
      await using first = await opened(bucket);
      await first.put(item('one', EFFECT));
    }
    {
      await using second = await opened(bucket);
      await second.put(item('two', EFFECT));
    }
    const key = keyLike(bucket, /00000001-\w{8}-00000001$/);
    const changed = change(bucket.objects.get(key) ?? Buffer.alloc(0));
    if (changed) bucket.objects.set(key, changed);
    else bucket.objects.delete(key);
    const error = await opened(bucket).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: 'DAMAGED_JOURNAL' });
    expect(String(error)).toContain(key);
    expect(String(error)).toContain(text);
  });

  it('waits for a bucket that is away, and ends the run when that lasts; the log is kept', async () => {
    const bucket = new MemoryBucket();
    await using journal = await opened(bucket);
    let fails = 1;
    const put = bucket.put.bind(bucket);
    bucket.put = (...parameters) =>
      fails-- > 0
        ? Promise.reject(new CodedError('BLOB_UNAVAILABLE', 'away', { retry: 'backoff' }))
        : put(...parameters);
    await journal.put(item('one', EFFECT));
    fails = Infinity;
    journal.addLine('last words\n');
    await expect(journal.put(item('two', EFFECT))).rejects.toMatchObject({ code: 'STILL_AWAY' });
    await expect(journal.put(item('three'))).rejects.toMatchObject({ code: 'STILL_AWAY' });
    const log = await journal.finishLog();
    expect(gunzipSync(Buffer.concat(await Array.fromAsync(log.read()))).toString()).toBe(
      'last words\n',
    );
  });

  it('stores nothing once this process does not lead', async () => {
    const bucket = new MemoryBucket();
    let leads = true;
    await using journal = await opened(bucket, {
      assertLeading: () => {
        if (!leads) throw new CodedError('LEADERSHIP_LOST', 'another one leads');
      },
    });
    leads = false;
    await expect(journal.put(item('one', EFFECT))).rejects.toMatchObject({
      code: 'LEADERSHIP_LOST',
    });
    expect(keysOf(bucket)).toHaveLength(1);
  });

  it('is removed by its UID, or with all of a name', async () => {
    const bucket = new MemoryBucket();
    await (await opened(bucket))[Symbol.asyncDispose]();
    await (await opened(bucket, { uid: 'u2' }))[Symbol.asyncDispose]();
    await removeJournals(bucket, FOLDER, signal);
    expect([...bucket.objects.keys()]).toEqual([
      expect.stringMatching(/^backups\/b1\/longshore-journal\/u2\/00000001-\w{8}-00000000$/),
    ]);
    await removeJournals(bucket, journalsFolder('b1'), signal);
    expect(bucket.objects.size).toBe(0);
  });
});

describe('the sealed journal of a backup', () => {
  const SEALED = {
    ...BACKUP,
    metadata: { ...BACKUP.metadata, annotations: { 'longshore.io/sealed-journal': 'true' } },
  };

  const sealedBy = async (raw: MemoryBucket, password = 'a secret'): Promise<EncryptingBucket> => {
    const keys = await signingBy({ current: password, others: [], earlierKeys: [] });
    return new EncryptingBucket(raw, { keys, encrypts: false });
  };
  const openedIn = async (raw: MemoryBucket, more: Partial<BackupJournalOptions> = {}) =>
    opened(raw, { bucket: await sealedBy(raw), isSealed: true, ...more });
  const store = async (
    raw: MemoryBucket,
    name: string,
    more: Partial<BackupJournalOptions> = {},
  ) => {
    await using journal = await openedIn(raw, more);
    await journal.put(item(name, EFFECT));
  };

  it('is encrypted in every location, and another server goes on from it', async () => {
    const raw = new MemoryBucket();
    await store(raw, 'one');
    for (const bytes of raw.objects.values()) {
      expect(Buffer.from(bytes).toString('latin1', 0, 8)).toBe('LSCRYPT1');
    }
    await using next = await openedIn(raw);
    expect(next.isContinued).toBe(true);
    expect(await pathsOf(next)).toEqual(['version', 'one.json']);
  });

  const firstOf = (bucket: MemoryBucket): Buffer =>
    bucket.objects.get(keyLike(bucket, /00000000$/)) ?? Buffer.of();
  const FORGED: Record<string, (raw: MemoryBucket) => Promise<void>> = {
    'a plain segment in place of its own': async (raw) => {
      const plain = new MemoryBucket();
      await (await opened(plain)).put(item('forged', EFFECT));
      raw.objects.set(keyLike(raw, /00000000$/), firstOf(plain));
    },
    'a plain try behind the last one': async (raw) => {
      const plain = new MemoryBucket();
      for (let tries = 0; tries < 3; tries++)
        await (await opened(plain)).put(item(`${tries}`, EFFECT));
      for (const [key, bytes] of plain.objects) if (key.includes('/00000003-')) raw.objects.set(key, bytes); // prettier-ignore
    },
    'its own segments in another order': (raw) => {
      const [first, second] = [/00000000$/, /00000001$/].map((end) => keyLike(raw, end));
      const [one, two] = [first, second].map((key) => raw.objects.get(key ?? ''));
      raw.objects.set(first ?? '', two ?? Buffer.of());
      raw.objects.set(second ?? '', one ?? Buffer.of());
      return Promise.resolve();
    },
    'a segment of another run': async (raw) => {
      const other = new MemoryBucket();
      await store(other, 'other', { uid: 'u2' });
      raw.objects.set(keyLike(raw, /00000000$/), firstOf(other));
    },
    'a segment by another password': async (raw) => {
      const other = new MemoryBucket();
      await store(other, 'other', { bucket: await sealedBy(other, 'of a stranger') });
      raw.objects.set(keyLike(raw, /00000000$/), firstOf(other));
    },
  };

  it.each(Object.keys(FORGED))('is refused with %s', async (how) => {
    const raw = new MemoryBucket();
    await store(raw, 'one');
    await FORGED[how]?.(raw);
    await expect(openedIn(raw)).rejects.toMatchObject({ code: 'DAMAGED_JOURNAL' });
  });

  it('ends what its true segments name, and the log tells of a forged one', async () => {
    const raw = new MemoryBucket();
    {
      await using journal = await openedIn(raw);
      await journal.willFreeze({ kind: 'v1/Pod', namespace: 'a', name: 'own' });
    }
    const plain = new MemoryBucket();
    {
      await using journal = await opened(plain);
      await journal.willFreeze({ kind: 'v1/Pod', namespace: 'kube-system', name: 'forged' });
    }
    for (const [key, bytes] of plain.objects) raw.objects.set(key, bytes);
    const warned: unknown[] = [];
    const logger = { ...silentLogger, warn: (fields: object) => warned.push(fields) } as Logger;
    const bucket = await sealedBy(raw);
    const left = await readUnfinishedRun({ bucket, backup: SEALED, logger, signal });
    expect(left.frozen).toEqual([{ namespace: 'a', name: 'own' }]);
    expect(warned).toHaveLength(plain.objects.size);
    expect(JSON.stringify(warned[0])).toMatch(/"b1".*not encrypted/);
  });

  it('waits while there is no password, and is never written in plain text', async () => {
    const raw = new MemoryBucket();
    await store(raw, 'one');
    const bucket = new EncryptingBucket(raw, { keys: undefined, encrypts: false });
    const late = { code: 'STILL_AWAY', message: expect.stringContaining('no repository password') as string }; // prettier-ignore
    await expect(openedIn(raw, { bucket })).rejects.toMatchObject(late);
    const fresh = new MemoryBucket();
    const keyless = new EncryptingBucket(fresh, { keys: undefined, encrypts: false });
    await expect(openedIn(fresh, { bucket: keyless })).rejects.toMatchObject(late);
    expect(fresh.objects.size).toBe(0);
  });

  it('is plain if an earlier version began the run, and the next server goes on with it', async () => {
    const raw = new MemoryBucket();
    await (await opened(raw)).put(item('one', EFFECT));
    await using next = await openedIn(raw, { isSealed: false });
    expect(await pathsOf(next)).toEqual(['version', 'one.json']);
  });
});
