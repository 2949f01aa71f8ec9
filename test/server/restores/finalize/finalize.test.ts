import { randomBytes } from 'node:crypto';
import { gunzipSync, gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import {
  BackupArchive,
  type BackupVolumeInfo,
  RestoreArchive,
} from '../../../../src/archive/index.ts';
import { CodedError, MINUTE_NS, SECOND_NS } from '../../../../src/base/index.ts';
import { isOver } from '../../../../src/kube/index.ts';
import { CANCEL_ANNOTATION } from '../../../../src/plugin/index.ts';
import { loadAfterRun } from '../../../../src/server/restores/contract.ts';
import { tempDirectory } from '../../../support/kopia.ts';
import { failedWith, START } from '../../operations/support/after-run.ts';
import { refused } from '../../../restore/support/cluster.ts';
import { claimLeft, podLeft, SUBJECT, World } from '../support/world.ts';

const scratch = tempDirectory('scratch');
const LEFT = 'restores/r1/longshore-after-run.json.gz';
const OPERATIONS = 'restores/r1/restore-r1-itemoperations.json.gz';
const HOOKS = {
  hooks: { resources: [{ name: 'h', postHooks: [{ exec: { command: ['x'] } }] }] },
};
const finalizing = (spec = {}) => new World('Finalizing', spec);
const logOf = (world: World): string => {
  const bytes = world.bucket.objects.get('restores/r1/restore-r1-logs.gz');
  return bytes ? gunzipSync(bytes).toString() : '';
};
const resultsOf = async (world: World) => world.archive.results('r1');
const pvOf = (world: World, name: string) =>
  world.cluster.get('persistentvolumes', `pv-${name}`) as unknown as {
    metadata: { labels: object };
    spec: { persistentVolumeReclaimPolicy: string };
  };

/** Repeats until nothing is pending. */
async function untilOver(world: World, server = world.server(scratch)): Promise<number> {
  for (let looks = 1; looks < 200; looks++) {
    const again = await server.finalize();
    if (!again) return looks;
    world.clock.advance(BigInt(again.againMs) * 1_000_000n);
  }
  throw new Error('it is not over');
}

describe('the finalizer of restores', () => {
  it('completes a restore that left nothing, with few requests', async () => {
    const world = await finalizing().begin([]);
    world.say({ errors: 0, warnings: 2 });
    expect(await untilOver(world)).toBe(1);
    expect(world.status).toMatchObject({
      phase: 'Completed',
      errors: 0,
      warnings: 2,
      completionTimestamp: '2026-11-21T02:00:00Z',
    });
    expect(world.status.hookStatus).toBeUndefined();
    expect(world.requests.filter((text) => text.startsWith('put'))).toEqual([]);
  });

  it('keeps errors that are told in the same words, and adds each only once however often it is killed', async () => {
    const failure = {
      time: '2026-11-21T01:59:00Z',
      namespace: 'app',
      name: 'p',
      message: 'it broke',
    };
    const failures = [failure, failure];
    const hooks = { attempted: 4, failed: 4, pods: [], failures };
    const world = await new World('FinalizingPartiallyFailed', HOOKS).begin([], { hooks });
    const before = ['hook h failed', 'hook h failed'];
    await world.archive.put('r1', { results: { errors: { namespaces: { app: before } } } });
    world.say({ errors: 2 });
    for (let times = 0; times < 2; times++) {
      world.say({ phase: 'FinalizingPartiallyFailed', errors: 2 });
      await untilOver(world);
      expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 4 });
      const { errors } = await resultsOf(world);
      expect(errors?.namespaces?.app).toEqual([...before, 'pod p: it broke', 'pod p: it broke']);
    }
  });

  describe('where a killed server has left the journal of the run', () => {
    const KEY = 'restores/r1/longshore-journal/u1/00000001-aaaaaaaa-00000000';
    const withJournal = async (): Promise<World> => {
      const world = await finalizing().begin([]);
      world.bucket.objects.set(KEY, Buffer.from('any'));
      return world;
    };

    it('removes it', async () => {
      const world = await withJournal();
      await untilOver(world);
      expect(world.bucket.objects.has(KEY)).toBe(false);
    });

    it.each([
      { retry: 'never', phase: 'Completed' },
      { retry: 'backoff', phase: 'Finalizing' },
    ] as const)('is $phase where that is refused, and may be tried again: $retry', async (each) => {
      const world = await withJournal();
      const refusal = new CodedError('BLOB_REFUSED', 'no deletion here', { retry: each.retry });
      world.bucket.delete = () => Promise.reject(refusal);
      await untilOver(world).catch((error: unknown) => {
        expect(error).toBe(refusal);
      });
      expect(world.status.phase).toBe(each.phase);
    });
  });

  it('ends none whose files are kept apart, since its location was written once until a moment ago', async () => {
    const world = await new World('Finalizing', {}, { isWriteOnce: true }).begin([]);
    world.mode = { isWriteOnce: false };
    await expect(world.server(scratch).finalize()).rejects.toMatchObject({ code: 'FILES_APART' });
    expect(world.status.phase).toBe('Finalizing');
    world.mode = { isWriteOnce: true };
    await world.server(scratch).finalize();
    expect(world.status.phase).toBe('Completed');
    expect(world.bucket.objects.has('restores/r1/restore-r1-results.gz')).toBe(true);
    expect(world.bucket.putTwice).toEqual([]);
  });

  it('gives new volumes the old policy and the labels that they lack', async () => {
    const world = await finalizing().begin([], {
      claims: [claimLeft('a', { tier: 'gold', zone: 'b' }), claimLeft('b')],
    });
    world.addClaim('a');
    world.addClaim('b');
    expect(await untilOver(world)).toBe(1);
    expect(pvOf(world, 'a').metadata.labels).toEqual({ zone: 'a', tier: 'gold' });
    expect(pvOf(world, 'a').spec.persistentVolumeReclaimPolicy).toBe('Retain');
    expect(pvOf(world, 'b').metadata.labels).toEqual({ zone: 'a', tier: 'gold' });
    expect(world.status.phase).toBe('Completed');
  });

  it('waits for claims to be bound, holds nothing meanwhile, and goes on with the rest', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('a'), claimLeft('late')] });
    world.addClaim('a');
    world.addClaim('late', { isBound: false });
    const server = world.server(scratch);
    expect(await server.finalize()).toEqual({ againMs: 2000 });
    expect(pvOf(world, 'a').spec.persistentVolumeReclaimPolicy).toBe('Retain');
    world.requests.length = 0;
    world.clock.advance(10n * SECOND_NS);
    await server.finalize();
    // Settled claims are not requested again.
    expect(world.requests.filter((text) => text === 'GET persistentvolumeclaims')).toHaveLength(1);
    world.addClaim('late');
    expect(await server.finalize()).toBeUndefined();
    expect(world.status.phase).toBe('Completed');
  });

  it('says which volume did not get what it should when the time is over', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('late'), claimLeft('gone')] });
    world.addClaim('late', { isBound: false });
    await untilOver(world);
    expect(world.clock.nowNs() - START).toBeGreaterThanOrEqual(600n * SECOND_NS);
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 2 });
    const text = (name: string, why: string) =>
      `Finalizing: the volume of claim app/${name} did not get the reclaim policy and the labels of the old one: ${why} (waited for 600 s)`;
    expect((await resultsOf(world)).errors?.namespaces).toEqual({
      app: [
        text('late', 'the claim is not bound (Pending)'),
        text('gone', 'the claim is not there'),
      ],
    });
    expect(logOf(world).match(/level=error/g)).toHaveLength(2);
  });

  it('counts the time across a restart, and not that of a clock that is set', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('late')] });
    await world.server(scratch).finalize();
    const left = await loadAfterRun(world.bucket, SUBJECT);
    expect(left?.finalizingSince).toBe('2026-11-21T02:00:00Z');
    world.clock.advance(9n * MINUTE_NS);
    const second = world.server(scratch);
    expect(await second.finalize()).toBeDefined();
    world.clock.advance(61n * SECOND_NS);
    expect(await second.finalize()).toBeUndefined();
    expect(world.status.phase).toBe('PartiallyFailed');
  });

  it('gives claims some time after a restart even where the clock says it is over', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('late')] });
    await world.server(scratch).finalize();
    world.clock.advance(10_000n * MINUTE_NS);
    const second = world.server(scratch);
    expect(await second.finalize()).toBeDefined();
    world.addClaim('late');
    expect(await second.finalize()).toBeUndefined();
    expect(world.status.phase).toBe('Completed');
  });

  it('gives claims some time after an hour in which nobody could look', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('late')] });
    const server = world.server(scratch);
    await server.finalize();
    world.clock.advance(60n * MINUTE_NS);
    expect(await server.finalize()).toBeDefined();
    world.clock.advance(30n * SECOND_NS);
    world.addClaim('late');
    expect(await server.finalize()).toBeUndefined();
    expect(world.status.phase).toBe('Completed');
  });

  it('does not end a restore by what was absent before and after an hour in which nobody could look', async () => {
    const world = await finalizing().begin([]);
    const server = world.server(scratch);
    world.hasLocation = false;
    await server.finalize();
    world.clock.advance(60n * MINUTE_NS);
    expect(await server.finalize()).toBeDefined();
    world.hasLocation = true;
    expect(await server.finalize()).toBeUndefined();
    expect(world.status.phase).toBe('Completed');
  });

  it('leaves claims alone that nobody uses yet, and those whose operation failed', async () => {
    const world = await finalizing().begin(['idle'], {
      claims: [claimLeft('idle'), claimLeft('first')],
    });
    world.say({ phase: 'WaitingForPluginOperations' });
    world.answers.set('idle', failedWith('broke'));
    world.addClaim('idle');
    world.addClaim('first', { isBound: false });
    world.cluster.add('storageclasses.storage.k8s.io', {
      metadata: { name: 'fast' },
      volumeBindingMode: 'WaitForFirstConsumer',
    });
    const server = world.server(scratch);
    await server.step();
    expect(await untilOver(world, server)).toBe(1);
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect(pvOf(world, 'idle').spec.persistentVolumeReclaimPolicy).toBe('Delete');
    expect(logOf(world)).toContain('the claim is bound only when a pod uses it');
    expect(logOf(world)).toContain('the operation that fills the claim is Failed');
  });

  it('does not overwrite what somebody changes meanwhile', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('a')] });
    world.addClaim('a');
    const pv = world.cluster.get('persistentvolumes', 'pv-a');
    // After the read, and before the patch.
    const server = world.server(scratch, async (task) => {
      const result = await task();
      if (pv && world.requests.at(-1) === 'GET persistentvolumes') {
        pv.metadata.resourceVersion = '6';
        pv.metadata.labels = { zone: 'a', tier: 'mine' };
      }
      return result;
    });
    expect(await server.finalize()).toBeDefined();
    expect(world.requests).toContain('PATCH persistentvolumes');
    expect(pvOf(world, 'a').spec.persistentVolumeReclaimPolicy).toBe('Delete');
    await untilOver(world, server);
    expect(pvOf(world, 'a').metadata.labels).toEqual({ zone: 'a', tier: 'mine' });
    expect(world.status.phase).toBe('Completed');
  });

  it('removes ConfigMaps that were there for the restore alone', async () => {
    const world = await finalizing().begin([]);
    world.cluster.add('configmaps', { metadata: { namespace: 'velero', name: 'du-1' } });
    await untilOver(world);
    expect(world.cluster.get('configmaps', 'velero/du-1')).toBeUndefined();
  });

  it('says what became of hooks, of which some have failed after the run', async () => {
    const world = await finalizing().begin([], {
      hooks: {
        attempted: 4,
        failed: 2,
        pods: [],
        failures: [
          { time: '2026-11-21T01:30:00Z', namespace: 'app', name: 'p', message: 'hook h broke' },
        ],
      },
    });
    world.say({ errors: 1 });
    await untilOver(world);
    expect(world.status).toMatchObject({
      phase: 'PartiallyFailed',
      errors: 2,
      hookStatus: { hooksAttempted: 4, hooksFailed: 2 },
    });
    expect((await resultsOf(world)).errors?.namespaces).toEqual({ app: ['pod p: hook h broke'] });
  });

  it('waits for hooks, and tells them to end when they have had their time', async () => {
    const world = await finalizing(HOOKS).begin([], {
      hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
    });
    world.addPod('p', false);
    const server = world.server(scratch);
    server.hooks.begin(world.restore);
    expect(await server.finalize()).toBeDefined();
    world.clock.advance(239n * MINUTE_NS);
    expect(await server.finalize()).toBeDefined();
    world.clock.advance(2n * MINUTE_NS);
    expect(await server.finalize()).toBeDefined();
    // The server could not look for so long: the hooks get one more minute.
    world.clock.advance(61n * SECOND_NS);
    expect(await server.finalize()).toBeDefined();
    await server.hooks.ended();
    expect(await server.finalize()).toBeUndefined();
    expect(world.status).toMatchObject({
      phase: 'PartiallyFailed',
      errors: 1,
      hookStatus: { hooksAttempted: 1, hooksFailed: 1 },
    });
    expect((await resultsOf(world)).errors?.namespaces?.app?.[0]).toContain('not executed');
  });

  it('says again what became of hooks where another server has put an older file back', async () => {
    const world = await finalizing(HOOKS).begin([], {
      hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
    });
    world.addPod('p');
    const older = world.bucket.objects.get(LEFT) as Buffer;
    const server = world.server(scratch);
    server.hooks.begin(world.restore);
    await server.hooks.ended();
    world.bucket.objects.set(LEFT, older);
    for (let looks = 0; !isOver(world.status.phase ?? ''); looks++) {
      expect(looks).toBeLessThan(3);
      await server.finalize();
      await server.hooks.ended();
      world.clock.advance(60n * SECOND_NS);
    }
    expect(world.ran).toHaveLength(1);
    expect(world.status).toMatchObject({ phase: 'Completed', hookStatus: { hooksAttempted: 1 } });
  });

  it('waits for hooks as long as the Restore lets its operations take', async () => {
    const world = await finalizing({ ...HOOKS, itemOperationTimeout: '30m' }).begin([], {
      hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
    });
    world.addPod('p', false);
    const server = world.server(scratch);
    server.hooks.begin(world.restore);
    expect(await server.finalize()).toBeDefined();
    world.clock.advance(31n * MINUTE_NS);
    expect(await server.finalize()).toBeDefined();
    // The server could not look for so long: the hooks get one more minute.
    world.clock.advance(61n * SECOND_NS);
    expect(await server.finalize()).toBeDefined();
    await server.hooks.ended();
    expect(await server.finalize()).toBeUndefined();
    expect(world.status.hookStatus).toEqual({ hooksAttempted: 1, hooksFailed: 1 });
  });

  it('waits no more for claims and hooks of a restore that is canceled', async () => {
    const world = await finalizing(HOOKS).begin([], {
      claims: [claimLeft('late')],
      hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
    });
    world.addPod('p', false);
    const server = world.server(scratch);
    server.hooks.begin(world.restore);
    expect(await server.finalize()).toBeDefined();
    const annotations = { [CANCEL_ANNOTATION]: 'true' };
    world.restore = { ...world.restore, metadata: { ...world.restore.metadata, annotations } };
    await server.finalize();
    await server.hooks.ended();
    expect(await server.finalize()).toBeUndefined();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 2 });
    expect((await resultsOf(world)).errors?.namespaces?.app?.[1]).toContain(
      'the claim is not there (the restore is canceled)',
    );
  });

  it.each([{ isWriteOnce: false }, { isWriteOnce: true }])(
    'ends a restore at once whichever of its files is damaged (written once: $isWriteOnce)',
    async (mode) => {
      const keysOf = (world: World): string[] =>
        [...world.bucket.objects.keys()].filter((key) => key.startsWith('restores/r1/'));
      const finalizing = async (): Promise<World> => {
        const world = new World('Finalizing', {}, mode);
        world.madeHere();
        await world.begin(['op-1'], { claims: [claimLeft('data')] });
        world.addClaim('data');
        world.say({ restoreItemOperationsAttempted: 1, restoreItemOperationsCompleted: 1 });
        if (mode.isWriteOnce) {
          const seal = 'restores/r1/longshore-once/_sealed/u1';
          world.bucket.objects.set(
            seal,
            Buffer.from('{"version":1,"files":{},"end":{"phase":"Completed"}}'),
          );
        }
        return world;
      };
      const { length } = keysOf(await finalizing());
      for (let at = 0; at < length; at++) {
        const world = await finalizing();
        const key = keysOf(world)[at] ?? '';
        world.bucket.objects.set(key, Buffer.from('nothing'));
        const server = world.server(scratch);
        for (let looks = 0; looks < 100 && !isOver(world.status.phase ?? ''); looks++) {
          await server.finalize();
          world.clock.advance(10n * SECOND_NS);
        }
        expect(world.status.phase, key).toMatch(/^(Completed|PartiallyFailed)$/);
        // If an earlier try has decided the end, it counts.
        const needed = mode.isWriteOnce ? /_sealed/ : /after-run|itemoperations/;
        if (needed.test(key)) {
          expect(world.status.phase, key).toBe('PartiallyFailed');
        }
      }
    },
  );

  it('says it where what the run left is damaged, and does what can be done', async () => {
    const world = await finalizing().begin([]);
    world.bucket.objects.set(LEFT, gzipSync('{"version":2}'));
    await world.archive.put('r1', { resourceList: {} });
    await untilOver(world);
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect((await resultsOf(world)).errors?.velero?.[0]).toContain(
      'what the run has left to be done is damaged',
    );
  });

  it('ends a restore of which neither that nor the list of its resources can be read', async () => {
    const world = await finalizing().begin([]);
    world.bucket.objects.set(LEFT, Buffer.from('no gzip'));
    const list = 'restores/r1/restore-r1-resource-list.json.gz';
    world.bucket.objects.set(list, Buffer.from('no gzip'));
    await untilOver(world);
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 2 });
    expect((await resultsOf(world)).errors?.velero?.[1]).toContain(
      'which volumes were provisioned anew cannot be read',
    );
  });

  it('ends a restore that another server has run, by the volume infos of the backup', async () => {
    const world = await finalizing({ namespaceMapping: { old: 'app' } }).begin([]);
    world.bucket.objects.delete(LEFT);
    const entries = ['app/a(created)', 'app/b(skipped)'];
    await world.archive.put('r1', { resourceList: { 'v1/PersistentVolumeClaim': entries } });
    const info = (pvcName: string) => ({
      pvcName,
      pvcNamespace: 'old',
      pvName: `old-${pvcName}`,
      backupMethod: 'CSISnapshot',
      pvInfo: { reclaimPolicy: 'Retain', labels: { tier: 'gold' } },
    });
    await storeBackup(world, [info('a'), info('b')]);
    world.addClaim('a');
    world.addClaim('b');
    await untilOver(world);
    expect(world.status.phase).toBe('Completed');
    expect(pvOf(world, 'a').spec.persistentVolumeReclaimPolicy).toBe('Retain');
    expect(pvOf(world, 'b').spec.persistentVolumeReclaimPolicy).toBe('Delete');
  });

  it('ends a restore by its CR alone where its backup is gone for long', async () => {
    const world = await finalizing().begin([]);
    world.cluster.remove('backups.velero.io', 'velero/b1');
    world.cluster.add('configmaps', { metadata: { namespace: 'velero', name: 'du-1' } });
    const server = world.server(scratch);
    await untilOver(world, server);
    expect(world.clock.nowNs() - START).toBeGreaterThanOrEqual(600n * SECOND_NS);
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect(world.status.failureReason).toContain('Backup velero/b1 of restore r1 is not there');
    expect(world.cluster.get('configmaps', 'velero/du-1')).toBeUndefined();
  });

  it('ends a restore whose location stays deleted, and says what is not stored', async () => {
    const world = await finalizing(HOOKS).begin([], {
      claims: [claimLeft('a')],
      hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
    });
    world.hasLocation = false;
    const first = await world.server(scratch).finalize();
    expect(first).toMatchObject({ because: 'no location default' });
    // The time counts across a restart, after which little time is left.
    world.clock.advance(9n * MINUTE_NS);
    const second = world.server(scratch);
    expect(await second.finalize()).toBeDefined();
    world.clock.advance(61n * SECOND_NS);
    expect(await second.finalize()).toBeUndefined();
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect(world.status.failureReason).toMatch(
      /^no location default; nothing could be stored there for 600 s, .*hooks that were due/,
    );
    expect(world.restore.metadata.annotations).toEqual({ 'longshore.io/unpublished': 'true' });
  });

  describe('where neither the bucket nor the cluster takes its files', () => {
    /** Refuses all later writes. */
    const refuseAll = (world: World): void => {
      world.allow = (call, key) => {
        if (call === 'get' || call === 'list' || call === 'has') return;
        throw new CodedError('STORAGE_DENIED', `${call} of ${key} refused`);
      };
      const noRoom = (type: string): void => {
        const text = 'configmaps is forbidden: exceeded quota: maps';
        if (type === 'configmaps') throw refused('KUBE_FORBIDDEN', text, 403);
      };
      world.cluster.onCreate = noRoom;
      world.cluster.onPatch = noRoom;
    };

    it.each([{ isWriteOnce: false }, { isWriteOnce: true }])(
      'ends it after a while, and the Restore says which file and why (written once: $isWriteOnce)',
      async (mode) => {
        const world = new World('Finalizing', {}, mode);
        await world.begin([], { claims: [claimLeft('gone')] });
        world.say({ warnings: 2 });
        refuseAll(world);
        await untilOver(world);
        const tookNs = world.clock.nowNs() - START;
        // The time-out of claims, and once more.
        expect(tookNs).toBeGreaterThanOrEqual(600n * SECOND_NS);
        expect(tookNs).toBeLessThan(1300n * SECOND_NS);
        expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1, warnings: 2 });
        expect(world.status.failureReason).toMatch(
          /^cannot store \S+: put of \S+ refused; the cluster cannot keep it either: .*exceeded quota/,
        );
        expect(world.restore.metadata.annotations).toEqual({ 'longshore.io/unpublished': 'true' });
      },
    );

    it('ends one whose hooks can never be told as over', async () => {
      const world = await finalizing(HOOKS).begin([], {
        hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
        finalizingSince: '2026-11-21T02:00:00Z',
      });
      refuseAll(world);
      const server = world.server(scratch);
      for (let looks = 0; !isOver(world.status.phase ?? ''); looks++) {
        expect(looks).toBeLessThan(1000);
        await server.finalize();
        world.clock.advance(60n * SECOND_NS);
      }
      expect(world.clock.nowNs() - START).toBeLessThan(16_000n * SECOND_NS);
      expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
      expect(world.status.failureReason).toContain('hooks that were due then may not have run');
    });

    it('waits anew for files that were taken meanwhile', async () => {
      const world = await finalizing().begin([], { claims: [claimLeft('late')] });
      const server = world.server(scratch, undefined, { resourceNs: 100n * SECOND_NS });
      refuseAll(world);
      expect((await server.finalize())?.because).toContain('exceeded quota');
      world.clock.advance(60n * SECOND_NS);
      world.allow = () => undefined;
      await untilOver(world, server);
      expect(world.restore.metadata.annotations).toEqual({});
      expect((await resultsOf(world)).errors?.namespaces?.app?.[0]).toContain('claim app/late');
      expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
      expect(world.status.failureReason).toBeUndefined();
    });
  });

  it('names in one warning what a seal cannot publish, and the cluster keeps it', async () => {
    const world = new World('Finalizing', {}, { isWriteOnce: true });
    await world.begin([]);
    world.allow = (call, key) => {
      if (call !== 'put' || key.includes('/longshore-once/')) return;
      throw new CodedError('STORAGE_FAILED', 'the object is locked');
    };
    await untilOver(world);
    expect(world.status).toMatchObject({ phase: 'Completed', warnings: 1 });
    const stored = new RestoreArchive(world.stored);
    const { warnings } = await stored.results('r1');
    expect(warnings?.velero).toHaveLength(1);
    expect(warnings?.velero?.[0]).toMatch(/the object is locked.* keep .*restore-r1-results\.gz/);
    const log = Buffer.concat(await Array.fromAsync(stored.readLog('r1'))).toString();
    expect(log).toContain('the object is locked');
    // A server that is killed before it updates the Restore repeats the step.
    world.say({ phase: 'Finalizing', warnings: 0 });
    await untilOver(world);
    expect(world.status).toMatchObject({ phase: 'Completed', warnings: 1 });
    expect((await stored.results('r1')).warnings?.velero).toHaveLength(1);
  });

  it.each([{ isWriteOnce: false }, { isWriteOnce: true }])(
    'ends one whose log is too long for the cluster, and names the log (written once: $isWriteOnce)',
    async (mode) => {
      const world = new World('Finalizing', {}, mode);
      world.allow = (call) => {
        if (call === 'put') throw new CodedError('STORAGE_READ_ONLY', 'the bucket is read-only');
      };
      const log = randomBytes(5 << 20);
      await new RestoreArchive(world.stored).put('r1', { results: {} });
      await world.stored.put('restores/r1/restore-r1-logs.gz', [log]);
      await untilOver(world);
      expect(world.status).toMatchObject({ phase: 'Completed', warnings: 1 });
      const { warnings } = await new RestoreArchive(world.stored).results('r1');
      expect(warnings?.velero).toHaveLength(1);
      expect(warnings?.velero?.[0]).toContain('lost: restore-r1-logs.gz');
    },
  );

  it('waits for a location anew that was back meanwhile', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('late')] });
    const server = world.server(scratch, undefined, { resourceNs: 100n * SECOND_NS });
    world.hasLocation = false;
    await server.finalize();
    expect(world.restore.metadata.annotations).toEqual({
      'longshore.io/absent-since': '2026-11-21T02:00:00Z',
    });
    world.clock.advance(60n * SECOND_NS);
    world.hasLocation = true;
    expect(await server.finalize()).toEqual({ againMs: 2000 });
    expect(world.restore.metadata.annotations).toEqual({});
    world.hasLocation = false;
    await server.finalize();
    world.clock.advance(60n * SECOND_NS);
    expect(await server.finalize()).toBeDefined();
    world.clock.advance(60n * SECOND_NS);
    expect(await server.finalize()).toBeUndefined();
  });

  it('looks again for an operations file that is gone, and takes what it says when it is back', async () => {
    const world = await finalizing().begin(['op-1']);
    world.say({ restoreItemOperationsCompleted: 1 });
    const file = world.bucket.objects.get(OPERATIONS) as Buffer;
    world.bucket.objects.delete(OPERATIONS);
    const server = world.server(scratch);
    expect((await server.finalize())?.because).toContain('1 of 1 item operations are missing');
    world.bucket.objects.set(OPERATIONS, file);
    expect(await server.finalize()).toBeUndefined();
    expect(world.status).toMatchObject({ phase: 'Completed' });
    expect(world.status.errors).toBeUndefined();
  });

  it('looks again for what the run has left where that is gone, and runs its hooks when it is back', async () => {
    const world = await finalizing(HOOKS).begin([], {
      hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
    });
    world.madeHere();
    world.addPod('p');
    const file = world.bucket.objects.get(LEFT) as Buffer;
    world.bucket.objects.delete(LEFT);
    const server = world.server(scratch);
    server.hooks.begin(world.restore);
    expect((await server.finalize())?.because).toContain(
      'what its run has left to be done is gone',
    );
    world.bucket.objects.set(LEFT, file);
    await server.hooks.ended();
    expect(world.ran).toEqual(['p: x']);
    expect(await server.finalize()).toBeUndefined();
    expect(world.status).toMatchObject({ phase: 'Completed', hookStatus: { hooksAttempted: 1 } });
  });

  it('is not Completed where what the run has left stays gone: hooks and volumes are missed', async () => {
    const world = await finalizing(HOOKS).begin([], {
      hooks: { attempted: 1, failed: 0, pods: [podLeft('p')], failures: [] },
    });
    world.madeHere();
    world.bucket.objects.delete(LEFT);
    await untilOver(world);
    expect(world.clock.nowNs() - START).toBeGreaterThanOrEqual(600n * SECOND_NS);
    expect(world.status).toMatchObject({ phase: 'PartiallyFailed', errors: 1 });
    expect((await resultsOf(world)).errors?.velero?.[0]).toContain('hooks that were due');
  });

  it('touches nothing of one that is deleted, or over', async () => {
    const world = await finalizing().begin([], { claims: [claimLeft('a')] });
    const { metadata } = world.restore;
    const deletionTimestamp = '2026-11-21T02:00:00Z';
    world.restore = { ...world.restore, metadata: { ...metadata, deletionTimestamp } };
    expect(await world.server(scratch).finalize()).toBeUndefined();
    expect(world.status.phase).toBe('Finalizing');
    world.restore = { ...world.restore, metadata };
    world.say({ phase: 'Completed' });
    expect(await world.server(scratch).finalize()).toBeUndefined();
    expect(world.requests.filter((text) => !text.startsWith('GET restores'))).toEqual([]);
  });

  it('notes what moved volumes have become, and where claims are bound', async () => {
    const world = await finalizing().begin(
      [],
      { podVolumes: [{ name: 'pvr-1', claim: 'files' }] },
      [
        {
          pvcName: 'moved',
          pvcNamespace: 'app',
          restoreMethod: 'CSISnapshot',
          snapshotDataMovementInfo: { operationID: 'dd-1', snapshotHandle: 's' },
        },
      ],
    );
    world.addClaim('moved');
    world.addClaim('files');
    world.cluster.add('datadownloads', {
      metadata: { name: 'd', uid: 'd', labels: { 'velero.io/async-operation-id': 'dd-1' } },
      spec: { targetVolume: { namespace: 'app', pvc: 'moved' }, snapshotID: 's' },
      status: { phase: 'Completed', progress: { totalBytes: 7, bytesDone: 7 } },
    });
    world.cluster.add('podvolumerestores', {
      metadata: { name: 'pvr-1', uid: 'p' },
      spec: { pod: { namespace: 'app', name: 'p' }, volume: 'v', snapshotID: 't' },
      status: { phase: 'Completed', progress: { totalBytes: 9 } },
    });
    await untilOver(world);
    const infos = await world.archive.volumeInfos('r1');
    expect(infos).toMatchObject([
      { pvcName: 'files', pvName: 'pv-files', pvrInfo: { size: 9, Phase: 'Completed' } },
      { pvName: 'pv-moved', snapshotDataMovementInfo: { size: 7, Phase: 'Completed' } },
    ]);
  });
});

async function storeBackup(world: World, volumeInfos: BackupVolumeInfo[]): Promise<void> {
  const metadata = {
    apiVersion: 'velero.io/v1',
    kind: 'Backup',
    metadata: { name: 'b1', namespace: 'velero', uid: 'b' },
    spec: {},
    status: { phase: 'Completed' },
  };
  await world.bucket.put('backups/b1/velero-backup.json', [Buffer.from(JSON.stringify(metadata))]);
  await new BackupArchive(world.bucket).update('b1', { volumeInfos });
}
