import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { downloads } from '../../src/agent/directions/downloads.ts';
import { CodedError, silentLogger, systemClock } from '../../src/base/index.ts';
import { InPlaceExposer } from '../../src/exposer/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  inPlaceConfig,
  type KubeClient,
  type KubeObject,
  PODS,
  PVCS,
  PVS,
  type Resource,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { callsThrough, withCalls } from '../support/with-calls.ts';

const CONFIG = { loadAffinity: [], backupPvc: {}, ignoreDelayBinding: false, podResources: {} };
const context = { operationTimeoutMs: 10_000, signal: new AbortController().signal };

describe('a second object of a volume', () => {
  let cluster: TestCluster;
  let path: string;
  beforeAll(async () => {
    // No node runs its pods: only the objects are checked.
    cluster = await TestCluster.start({ nodes: [] });
    await cluster.makeNamespace('shop');
    path = await cluster.makeVolume('shop', 'data');
    fs.writeFileSync(join(path, 'file'), 'precious');
  });
  afterAll(() => cluster[Symbol.asyncDispose]());

  const optionsWith = (client: KubeClient): ConstructorParameters<typeof InPlaceExposer>[0] => ({
    client,
    clock: systemClock,
    logger: silentLogger,
    namespace: NAMESPACE,
    daemonSet: 'node-agent',
    prepareTimeoutMs: 10_000,
    config: CONFIG,
  });
  const exposerWith = (client: KubeClient): InPlaceExposer =>
    new InPlaceExposer(optionsWith(client));
  let number = 0;
  const newDownload = (pvc = 'data'): Promise<DataDownload> =>
    cluster.client.create(DATA_DOWNLOADS, {
      // As a claimed one, which is not over.
      metadata: { namespace: NAMESPACE, name: `d${number++}`, finalizers: ['longshore.io/test'] },
      spec: {
        targetVolume: { namespace: 'shop', pvc, pv: '' },
        snapshotID: 'a',
        sourceNamespace: 'shop',
        backupStorageLocation: 'default',
        operationTimeout: '1m0s',
        datamover: 'longshore',
        dataMoverConfig: inPlaceConfig({ dryRun: false, keepExtra: false }),
      },
    });
  const end = async (download: DataDownload): Promise<void> => {
    await cluster.client.patch(DATA_DOWNLOADS, download.metadata, { metadata: { finalizers: [] } });
    await cluster.client.delete(DATA_DOWNLOADS, download.metadata);
  };

  const seconds = async (): Promise<string[]> =>
    (await cluster.client.list(PVS)).flatMap(({ metadata: { name } }) =>
      name.startsWith('longshore-in-place') ? [name] : [],
    );
  const ownObjects = async (): Promise<KubeObject[]> => {
    const claim = await cluster.client.get(PVCS, { namespace: 'shop', name: 'data' });
    return [claim, await cluster.client.get(PVS, { name: claim.spec.volumeName ?? '' })];
  };

  /**
   * A client whose process ends before the call with this number. `calls` tells how many it made;
   * writes are noted.
   */
  function mortal(dieAt: number): { client: KubeClient; calls: () => number; writes: string[] } {
    let calls = 0;
    const writes: string[] = [];
    const client = callsThrough(cluster.client, (call, given, go) => {
      if (calls >= dieAt) throw new CodedError('KILLED', 'the agent was killed');
      calls++;
      if (['create', 'patch', 'delete'].includes(call)) {
        const { plural } = given[0] as Resource<KubeObject>;
        writes.push(`${call} ${plural} ${JSON.stringify(given.slice(1))}`);
      }
      return go();
    });
    return { client, calls: () => calls, writes };
  }

  it('deletes nothing of the user, and leaves nothing behind, wherever its agent is killed', async () => {
    const before = await ownObjects();
    let isThrough = false;
    let rounds = 0;
    for (let dieAt = 0; !isThrough; dieAt++, rounds++) {
      const download = await newDownload();
      const { client, writes } = mortal(dieAt);
      const first = exposerWith(client);
      try {
        await first.expose(download, context);
        await first.waitUsable(download, context);
        isThrough = await first.cleanUp(download);
      } catch (error) {
        expect(error).toMatchObject({ code: 'KILLED' });
      }
      // The next one goes on, in some rounds from the beginning.
      const next = exposerWith(cluster.client);
      if (dieAt % 2 === 0) await next.expose(download, context);
      expect(await next.cleanUp(download)).toBe(true);
      for (const text of writes) {
        expect(text).not.toContain('"persistentVolumeReclaimPolicy":"Delete"');
        if (text.startsWith('delete')) expect(text).not.toContain('"namespace":"shop"');
      }
      await end(download);
      expect(await seconds()).toEqual([]);
      expect(await cluster.leftovers()).toEqual([]);
      expect(await ownObjects()).toEqual(before);
      expect(fs.readFileSync(join(path, 'file'), 'utf8')).toBe('precious');
    }
    expect(rounds).toBeGreaterThan(12);
  });

  it('is there once: a second restore of the volume is refused, and one that was forgotten gives way', async () => {
    const exposer = exposerWith(cluster.client);
    const [first, second] = [await newDownload(), await newDownload()];
    await exposer.expose(first, context);
    const [name = ''] = await seconds();
    const { spec, metadata } = await cluster.client.get(PVS, { name });
    expect(spec.persistentVolumeReclaimPolicy).toBe('Retain');
    expect(metadata.annotations).not.toHaveProperty(['pv.kubernetes.io/provisioned-by']);
    await expect(exposer.expose(second, context)).rejects.toMatchObject({
      code: 'TARGET_IN_USE',
      message: expect.stringContaining(
        `is under way (DataDownload velero/${first.metadata.name}`,
      ) as string,
    });
    // Its data mover may be on a node that is lost.
    const pod = { namespace: NAMESPACE, name: first.metadata.name };
    await cluster.client.patch(PODS, pod, { metadata: { finalizers: ['longshore.io/test'] } });
    // Somebody took its finalizer off and deleted it.
    await end(first);
    const { client, writes } = mortal(Infinity);
    const short = { ...context, operationTimeoutMs: 100 };
    await expect(exposerWith(client).expose(second, short)).rejects.toThrow('has not ended');
    expect(writes.join()).not.toContain('"gracePeriodSeconds":0');
    await cluster.client.patch(PODS, pod, { metadata: { finalizers: [] } });
    await exposer.expose(second, context);
    expect(await exposer.cleanUp(second)).toBe(true);
    await end(second);
    expect(await seconds()).toEqual([]);
  });

  it('is kept when somebody has had it say that the volume is to be deleted with it', async () => {
    const exposer = exposerWith(cluster.client);
    const download = await newDownload();
    await exposer.expose(download, context);
    const [name = ''] = await seconds();
    const patch = { spec: { persistentVolumeReclaimPolicy: 'Delete' } };
    await cluster.client.patch(PVS, { name }, patch);
    expect(await exposer.cleanUp(download)).toBe(true);
    await end(download);
    expect(fs.readFileSync(join(path, 'file'), 'utf8')).toBe('precious');
  });

  it('is not written on where its PVC was made again, or has another volume by now', async () => {
    const exposer = exposerWith(cluster.client);
    await cluster.makeVolume('shop', 'again');
    const download = await newDownload('again');
    await exposer.expose(download, context);
    expect(await exposer.lostReason(download, { ...context, isMoving: true })).toBeUndefined();
    await cluster.client.delete(PVCS, { namespace: 'shop', name: 'again' });
    await expect
      .poll(() => cluster.client.find(PVCS, { namespace: 'shop', name: 'again' }))
      .toBeUndefined();
    await cluster.makeVolume('shop', 'again');
    expect(await exposer.lostReason(download, { ...context, isMoving: true })).toBe(
      'PVC shop/again has another volume than when the restore began: its volume cannot be restored any more',
    );
    // A mover that reports completion meanwhile has not restored the volume of the present PVC.
    const done = downloads(optionsWith(cluster.client)).complete(download, {}, context);
    await expect(done).rejects.toThrow('has another volume than when the restore began');
    expect(await exposer.cleanUp(download)).toBe(true);
    await end(download);
    expect(await seconds()).toEqual([]);
  });

  it('that was only looked at is not called brought back where its report could not be noted', async () => {
    const download = await newDownload();
    const completed = async (dryRun: boolean): Promise<object> => {
      const dataMoverConfig = inPlaceConfig({ dryRun, keepExtra: false });
      const copy = { ...download, spec: { ...download.spec, dataMoverConfig } };
      return downloads(optionsWith(cluster.client)).complete(copy, {}, context);
    };
    const rest = '; what differed was not noted';
    expect(await completed(true)).toEqual({ message: `dry run: nothing was written${rest}` });
    expect(await completed(false)).toEqual({ message: `brought back in place${rest}` });
    await end(download);
  });

  it('is not used where the cluster makes something else of it', async () => {
    const download = await newDownload();
    const { client } = mortal(Infinity);
    const changing = withCalls(client, {
      create: async (resource: Resource<KubeObject>, object: never): Promise<KubeObject> => {
        const made = (await client.create(resource, object)) as KubeObject & { spec: object };
        if (resource !== PVS) return made;
        return {
          ...made,
          spec: { ...made.spec, persistentVolumeReclaimPolicy: 'Delete' },
        } as never;
      },
    });
    await expect(exposerWith(changing).expose(download, context)).rejects.toThrow(
      'so that deleting it would delete the data; nothing was restored',
    );
    expect(await cluster.client.list(PODS, { namespace: NAMESPACE })).toEqual([]);
    expect(await exposerWith(cluster.client).cleanUp(download)).toBe(true);
    await end(download);
  });
});
