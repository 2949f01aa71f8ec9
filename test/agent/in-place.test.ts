import { type ChildProcess, execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { inPlaceReportOf } from '../../src/agent/mover/in-place-report.ts';
import type { RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import { STAND_IN } from '../../src/dev/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  inPlaceConfig,
  type InPlaceOrder,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PODS,
  PVCS,
  PVS,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { noise } from '../support/noise.ts';

describe('a restore in place of a PVC', () => {
  let cluster: TestCluster;
  let agent: RunningAgent;
  beforeAll(async () => {
    cluster = await TestCluster.start({
      nodes: ['node-1'],
      moverEnvironment: { LONGSHORE_DOWNLOAD_LIMIT: '2MiB' },
    });
    await cluster.makeNamespace('shop');
    // As in place of Velero's: it serves restores in place all the same.
    agent = cluster.startAgent('node-1');
  });
  afterEach(async () => {
    for (const { metadata } of await cluster.client.list(PODS, { namespace: 'shop' })) {
      await cluster.client.delete(PODS, metadata, { gracePeriodSeconds: 0 });
    }
    expect(await cluster.leftovers()).toEqual([]);
    expect(await secondVolumes()).toEqual([]);
  });
  afterAll(async () => {
    await agent.stop();
    await cluster[Symbol.asyncDispose]();
  });

  const secondVolumes = async (): Promise<string[]> =>
    (await cluster.client.list(PVS)).flatMap(({ metadata: { name } }) =>
      name.startsWith('longshore-in-place') ? [name] : [],
    );

  /** A volume with a backup, and changes since. */
  async function changedVolume(
    pvc: string,
    bytes = 100_000,
  ): Promise<{ path: string; snapshotID: string }> {
    const path = await cluster.makeVolume('shop', pvc);
    fs.writeFileSync(join(path, 'kept'), noise('kept', 100_000));
    fs.writeFileSync(join(path, 'changed'), noise('changed', bytes));
    fs.writeFileSync(join(path, 'gone'), 'gone');
    const snapshot = await cluster.makeSnapshot('shop', pvc);
    await cluster.createUpload(`up-${pvc}`, { namespace: 'shop', pvc, snapshot });
    const { status } = await cluster.waitUpload(`up-${pvc}`);
    fs.cpSync(path, `${path}.then`, { recursive: true, preserveTimestamps: true });
    if (bytes > 100_000) fs.rmSync(join(path, 'changed'));
    else fs.appendFileSync(join(path, 'changed'), 'more');
    fs.rmSync(join(path, 'gone'));
    fs.mkdirSync(join(path, 'new'));
    fs.writeFileSync(join(path, 'new/file'), 'new');
    return { path, snapshotID: status?.snapshotID ?? '' };
  }

  const assertBack = (path: string): void => {
    execFileSync('diff', ['-r', '--no-dereference', `${path}.then`, path]);
  };

  const mover = (name: string): ChildProcess | undefined =>
    cluster.cluster.runners.get('node-1')?.processOf(name);

  /** The large file is written for seconds at this rate, under a name of its own. */
  async function untilWriting(path: string): Promise<void> {
    const isUnfinished = (name: string): boolean => name.startsWith('.longshore-restore-');
    while (!fs.readdirSync(path).some(isUnfinished)) await sleep(10);
  }

  const restore = (
    name: string,
    { pvc, snapshotID, ...order }: { pvc: string; snapshotID: string } & Partial<InPlaceOrder>,
  ): Promise<DataDownload> =>
    cluster.createDownload(name, {
      namespace: 'shop',
      pvc,
      snapshotID,
      sourceNamespace: 'shop',
      datamover: 'longshore',
      dataMoverConfig: inPlaceConfig({ dryRun: false, keepExtra: false, ...order }),
    });

  /** The user's own objects, without what controllers count in them. */
  async function ownObjects(pvc: string): Promise<[PersistentVolumeClaim, PersistentVolume]> {
    const claim = await cluster.client.get(PVCS, { namespace: 'shop', name: pvc });
    return [claim, await cluster.client.get(PVS, { name: claim.spec.volumeName ?? '' })];
  }

  it('writes what differs, says what it did, and leaves the PVC and its volume untouched', async () => {
    const { path, snapshotID } = await changedVolume('data');
    const before = await ownObjects('data');
    await restore('dry', { pvc: 'data', snapshotID, dryRun: true });
    const dry = await cluster.waitDownload('dry');
    expect(dry.status).toMatchObject({
      phase: 'Completed',
      message: expect.stringMatching(
        /^dry run: .* would be written and 7 B would be removed; entries: 1 changed, 1 created, /,
      ) as string,
    });
    expect(fs.existsSync(join(path, 'new/file'))).toBe(true);
    await restore('back', { pvc: 'data', snapshotID });
    const done = await cluster.waitDownload('back');
    expect(done.status?.message).toMatch(
      /^brought back in place: .* written and 7 B removed; entries: 1 changed, 1 created, 0 replaced, /,
    );
    assertBack(path);
    const report = inPlaceReportOf(done);
    expect(report).toMatchObject({ dryRun: false, created: 1, changed: 1, removed: 2 });
    expect(report?.bytesWritten).toBeLessThanOrEqual(100_004);
    expect(report?.changes).toContain('remove /new/file (3 B)');
    expect(await ownObjects('data')).toEqual(before);
  });

  it('changes nothing where a bound is passed', async () => {
    const { path, snapshotID } = await changedVolume('bound');
    await restore('bound', { pvc: 'bound', snapshotID, maxWriteBytes: 10 });
    const { status } = await cluster.waitDownload('bound');
    expect(status?.phase).toBe('Failed');
    expect(status?.message).toMatch(/which is more than 10 B .*nothing was changed/);
    expect(fs.existsSync(join(path, 'new/file'))).toBe(true);
  });

  const makeUser = (name: string, pvc: string): Promise<unknown> =>
    cluster.client.create(PODS, {
      metadata: { name, namespace: 'shop', annotations: { [STAND_IN]: 'true' } },
      spec: {
        containers: [{ name: 'app', image: 'app' }],
        volumes: [{ name: 'v', persistentVolumeClaim: { claimName: pvc } }],
      },
    });

  it('writes nothing into a volume that was made anew under the name of the one that was meant', async () => {
    const { path, snapshotID } = await changedVolume('anew');
    const [{ metadata, spec }] = await ownObjects('anew');
    const { metadata: was } = await cluster.client.get(PVS, { name: spec.volumeName ?? '' });
    const order = { pvc: 'anew', snapshotID, claimUid: metadata.uid };
    await restore('anew', { ...order, volumeUid: 'of-the-one-before' });
    expect((await cluster.waitDownload('anew')).status).toMatchObject({
      phase: 'Failed',
      message: expect.stringMatching(
        /PersistentVolume \S+ is another one than was meant: it was deleted and made again/,
      ) as string,
    });
    expect(fs.existsSync(join(path, 'new/file'))).toBe(true);
    await restore('same', { ...order, volumeUid: was.uid });
    expect((await cluster.waitDownload('same')).status?.phase).toBe('Completed');
    assertBack(path);
  });

  it('does not begin while a pod uses the PVC', async () => {
    const { path, snapshotID } = await changedVolume('used');
    await makeUser('db-0', 'used');
    await restore('used', { pvc: 'used', snapshotID });
    const { status } = await cluster.waitDownload('used');
    expect(status).toMatchObject({
      phase: 'Failed',
      message: 'cannot restore in place: pod shop/db-0 uses PVC shop/used: stop what uses it, and restore it again', // prettier-ignore
    });
    expect(fs.existsSync(join(path, 'new/file'))).toBe(true);
  });

  it('stops when a pod begins to use the PVC, and a mover that dies later has a successor that completes it', async () => {
    const { path, snapshotID } = await changedVolume('large', 16_000_000);
    await restore('stopped', { pvc: 'large', snapshotID });
    await untilWriting(path);
    await makeUser('db-0', 'large');
    const { status } = await cluster.waitDownload('stopped');
    expect(status?.phase).toBe('Failed');
    expect(status?.message).toMatch(
      /pod shop\/db-0 uses PVC shop\/large, and the restore was stopped: the volume may hold /,
    );
    await cluster.client.delete(PODS, { namespace: 'shop', name: 'db-0' }, { gracePeriodSeconds: 0 }); // prettier-ignore
    await restore('killed', { pvc: 'large', snapshotID });
    await untilWriting(path);
    mover('killed')?.kill('SIGKILL');
    const done = await cluster.waitDownload('killed');
    expect(done.status?.phase).toBe('Completed');
    expect(done.metadata.annotations?.['longshore.io/data-mover-restarts']).toBe('1');
    assertBack(path);
  });

  it('that is canceled ends as soon as its mover has, and another one completes it', async () => {
    const { path, snapshotID } = await changedVolume('canceled', 16_000_000);
    const { metadata } = await restore('canceled', { pvc: 'canceled', snapshotID });
    await untilWriting(path);
    await cluster.client.patch(DATA_DOWNLOADS, metadata, { spec: { cancel: true } });
    // Well before the time after which a mover stops that nobody saw end.
    await cluster.waitDownload('canceled', 'Canceled');
    await restore('again', { pvc: 'canceled', snapshotID });
    expect((await cluster.waitDownload('again')).status?.phase).toBe('Completed');
    assertBack(path);
  });

  it('refuses a PVC that is not there, is another one, or has no volume', async () => {
    const { snapshotID } = await changedVolume('other');
    await restore('missing', { pvc: 'missing', snapshotID });
    await restore('another', { pvc: 'other', snapshotID, claimUid: 'of-before' });
    await cluster.makeTarget('shop', 'pending');
    await restore('pending', { pvc: 'pending', snapshotID });
    const messageOf = async (name: string): Promise<string | undefined> =>
      (await cluster.waitDownload(name, 'Failed')).status?.message;
    expect(await messageOf('missing')).toContain('PVC shop/missing does not exist');
    expect(await messageOf('another')).toContain('PVC shop/other is another one than was meant');
    expect(await messageOf('pending')).toContain('PVC shop/pending is Pending, and has no volume');
  });

  it('made from a copy of one that is over, is done again', async () => {
    const { path, snapshotID } = await changedVolume('copied');
    await restore('first', { pvc: 'copied', snapshotID });
    const { metadata, spec } = await cluster.waitDownload('first');
    fs.writeFileSync(join(path, 'later'), 'later');
    const copy = { namespace: NAMESPACE, name: 'second', annotations: metadata.annotations ?? {} };
    await cluster.client.create(DATA_DOWNLOADS, { metadata: copy, spec });
    expect((await cluster.waitDownload('second')).status?.phase).toBe('Completed');
    assertBack(path);
  });
});
