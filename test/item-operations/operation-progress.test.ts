import { describe, expect, it } from 'vitest';
import { goJson, MINUTE_NS, parseGoTime } from '../../src/base/index.ts';
import {
  backupOperationSchema,
  countsOf,
  failureLine,
  isAnyRunning,
  merged,
  newlyFailed,
  newOperation,
  type Observation,
  observed,
  type Operation,
  orderedRecord,
  postOperationItems,
  restoreOperationSchema,
} from '../../src/item-operations/index.ts';
import type { OperationProgress } from '../../src/plugin/index.ts';
import { goldenJson } from '../support/golden-bucket.ts';

const NOW = parseGoTime('2026-11-21T02:28:51.9Z');
const BACKUP = { kind: 'Backup', name: 'b1', uid: 'u1' } as const;
const ITEM = { group: '', resource: 'persistentvolumeclaims', namespace: 'app', name: 'data' };
const begun = (id = 'du-1'): Operation =>
  newOperation(BACKUP, { action: 'velero.io/csi-pvc-backupper', operationId: id, item: ITEM }, NOW);
const as = (status: Operation['status'], id?: string): Operation => ({
  ...begun(id),
  status: { ...begun().status, ...status },
});
const said = (progress: Partial<OperationProgress> = {}): Observation => ({
  kind: 'progress',
  progress: {
    completed: false,
    err: '',
    nCompleted: 0,
    nTotal: 0,
    operationUnits: '',
    description: '',
    started: undefined,
    updated: undefined,
    ...progress,
  },
});
const unasked = (error = 'no route', isLasting = false): Observation => ({
  kind: 'unasked',
  error,
  isLasting,
});
const CALM = { unaskedForNs: undefined, unaskedTimes: 0, isOverdue: false };

describe("Velero's records", () => {
  it.each(['bucket-full1/full1', 'bucket-1-waiting/b2', 'bucket-3-completed/b2'])(
    'of backup %s are read, and written byte for byte',
    (file) => {
      const records = goldenJson(`${file}-itemoperations.json`) as object[];
      const operations = records.map((record) => backupOperationSchema.parse(record));
      expect(goJson(operations.map(orderedRecord))).toBe(goJson(records));
      expect(postOperationItems(operations)).toHaveLength(1);
    },
  );

  it('of a restore, too', () => {
    const file = 'bucket-restore-2-completed/restore-r3-itemoperations.json';
    const records = goldenJson(file) as object[];
    const operations = records.map((record) => restoreOperationSchema.parse(record));
    expect(goJson(operations.map(orderedRecord))).toBe(goJson(records));
    expect(postOperationItems(operations)).toEqual([]);
  });

  it('are made from the same facts', () => {
    const [record] = goldenJson('bucket-1-waiting/b2-itemoperations.json') as [
      {
        spec: { backupUID: string; operationID: string; postOperationItems: { Name: string }[] };
        status: { created: string };
      },
    ];
    const { backupUID, operationID, postOperationItems: items } = record.spec;
    const operation = newOperation(
      { kind: 'Backup', name: 'b2', uid: backupUID },
      {
        action: 'velero.io/csi-pvc-backupper',
        operationId: operationID,
        item: ITEM,
        postOperationItems: items.map(({ Name }) => ({
          group: 'velero.io',
          resource: 'datauploads',
          namespace: 'velero',
          name: Name,
        })),
      },
      parseGoTime(record.status.created),
    );
    expect(goJson(orderedRecord(operation))).toBe(goJson(record));
  });

  it('of a newer version keep what is unknown, and those of nothing have null', () => {
    const operation = backupOperationSchema.parse({
      spec: {
        operationID: 'x',
        backupItemAction: 'a/b',
        later: 1,
        resourceIdentifier: { Name: 'n', Version: 'v9' },
      },
      status: { phase: 'New', later: { a: 1 } },
    });
    expect(goJson(orderedRecord(operation))).toBe(
      '{"spec":{"backupName":"","backupUID":"","backupItemAction":"a/b","resourceIdentifier":' +
        '{"Group":"","Resource":"","Namespace":"","Name":"n","Version":"v9"},"operationID":"x",' +
        '"postOperationItems":null,"later":1},"status":{"phase":"New","later":{"a":1}}}',
    );
  });
});

describe('an operation', () => {
  it('stays new until its plugin knows when it began', () => {
    const { operation } = observed(begun(), said({ description: 'waits' }), CALM);
    expect(operation.status).toMatchObject({ phase: 'New', description: 'waits' });
    const started = said({ started: '2026-11-21T02:29:00Z', nCompleted: 1, nTotal: 9 });
    const next = observed(operation, started, CALM).operation;
    expect(next.status).toMatchObject({ phase: 'InProgress', started: '2026-11-21T02:29:00Z' });
    // A time that was known stays known.
    const later = observed(next, said({ nCompleted: 2, nTotal: 9 }), CALM).operation;
    expect(later.status).toMatchObject({ phase: 'InProgress', started: '2026-11-21T02:29:00Z' });
    expect(later.status.created).toBe('2026-11-21T02:28:51Z');
  });

  it('completes with all of it done', () => {
    const end = said({ completed: true, nCompleted: 8, nTotal: 9, operationUnits: 'Bytes' });
    const { operation, mustCancel } = observed(begun(), end, CALM);
    expect(operation.status).toMatchObject({ phase: 'Completed', nCompleted: 9, nTotal: 9 });
    expect(operation.status.error).toBeUndefined();
    expect(mustCancel).toBe(false);
  });

  it('fails by what its plugin says', () => {
    const end = said({ completed: true, err: 'DataUpload is canceled', nCompleted: 8, nTotal: 9 });
    expect(observed(begun(), end, CALM).operation.status).toMatchObject({
      phase: 'Failed',
      error: 'DataUpload is canceled',
      nCompleted: 8,
    });
  });

  it('is asked about again where its plugin could not be asked, for five minutes', () => {
    const short = { unaskedForNs: 5n * MINUTE_NS - 1n, unaskedTimes: 9, isOverdue: false };
    expect(observed(begun(), unasked(), short)).toEqual({ operation: begun(), mustCancel: false });
    const long = { unaskedForNs: 5n * MINUTE_NS, unaskedTimes: 9, isOverdue: false };
    expect(observed(begun(), unasked(), long).operation.status).toMatchObject({
      phase: 'Failed',
      error: 'no route',
    });
    expect(observed(begun(), unasked(''), long).operation.status).toMatchObject({
      phase: 'Failed',
      error: 'its plugin did not say why',
    });
  });

  it('fails at once where asking again is of no use', () => {
    const text = 'operation ID du-1 is invalid';
    expect(observed(begun(), unasked(text, true), CALM).operation.status).toMatchObject({
      phase: 'Failed',
      error: text,
    });
  });

  it('that takes too long is canceled and has failed, but not where it has just ended', () => {
    const late = { unaskedForNs: undefined, unaskedTimes: 0, isOverdue: true };
    for (const observation of [said({ nCompleted: 5, nTotal: 9 }), unasked()]) {
      const { operation, mustCancel } = observed(begun(), observation, late);
      expect(operation.status).toMatchObject({
        phase: 'Failed',
        error: 'Asynchronous action timed out',
      });
      expect(mustCancel).toBe(true);
    }
    const end = observed(begun(), said({ completed: true }), late);
    expect(end.operation.status.phase).toBe('Completed');
    expect(end.mustCancel).toBe(false);
  });

  it('that is over stays as it ended; what comes later is a description', () => {
    const done = as({ phase: 'Completed', nCompleted: 9, nTotal: 9 });
    const failed = as({ phase: 'Failed', error: 'Asynchronous action timed out' });
    const late = { unaskedForNs: undefined, unaskedTimes: 0, isOverdue: true };
    for (const observation of [said({ completed: true, err: 'x' }), said(), unasked('y', true)]) {
      expect(observed(done, observation, late)).toEqual({ operation: done, mustCancel: false });
      expect(observed(failed, observation, late).operation.status).toMatchObject({
        phase: 'Failed',
        error: 'Asynchronous action timed out',
      });
    }
    const ended = observed(failed, said({ completed: true }), late).operation;
    expect(ended.status.description).toBe('after its time-out it completed');
    const broken = observed(failed, said({ completed: true, err: 'no space' }), late).operation;
    expect(broken.status.description).toBe('after its time-out it failed: no space');
    const other = as({ phase: 'Later' });
    expect(observed(other, said(), CALM).operation).toEqual(other);
  });
});

it('counts for the status, and failed ones once across restarts', () => {
  const operations = [
    as({ phase: 'Completed' }, '1'),
    as({ phase: 'Failed', error: 'x' }, '2'),
    as({ phase: 'Failed' }, '3'),
    as({ phase: 'InProgress' }, '4'),
  ];
  expect(countsOf(operations)).toEqual({ attempted: 4, completed: 1, failed: 2 });
  expect(newlyFailed(operations, {})).toBe(2);
  expect(newlyFailed(operations, { countedFailed: 1 })).toBe(1);
  expect(newlyFailed(operations, { countedFailed: 3 })).toBe(0);
  expect(isAnyRunning(operations)).toBe(true);
  expect(isAnyRunning(operations.slice(0, 3))).toBe(false);
  expect(failureLine(operations[1] ?? begun(), 'a/b')).toBe('x, plugin: a/b');
  expect(failureLine(operations[2] ?? begun(), 'a/b')).toBe('plugin: a/b');
});

it('two lists become one that has all, each as far as either knows', () => {
  const stored = [
    as({ phase: 'Completed' }, '1'),
    as({ phase: 'InProgress', nCompleted: 5 }, '2'),
    as({ phase: 'InProgress', nCompleted: 5 }, '3'),
    as({ phase: 'New' }, '5'),
  ];
  const known = [
    as({ phase: 'Failed', error: 'late' }, '1'),
    as({ phase: 'InProgress', nCompleted: 7 }, '2'),
    as({ phase: 'New' }, '3'),
    as({ phase: 'New' }, '4'),
    as({ phase: 'Failed', error: 'x' }, '5'),
  ];
  const both = merged(stored, known);
  expect(
    both.map(({ spec, status }) => [spec.operationID, status.phase, status.nCompleted]),
  ).toEqual([
    ['1', 'Completed', undefined],
    ['2', 'InProgress', 7],
    ['3', 'InProgress', 5],
    ['5', 'Failed', undefined],
    ['4', 'New', undefined],
  ]);
  expect(merged(both, both)).toEqual(both);
  expect(merged([], known)).toEqual(known);
});
