import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DATA_DOWNLOADS, DATA_UPLOADS, PVCS, PVS, VOLUME_SNAPSHOTS } from '../../src/kube/index.ts';
import { DEV_PASSWORD, type RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import { getSnapshot } from '../../src/snapshot/index.ts';
import { FROZEN_TAG } from '../../src/uploader/listing/previous-entries.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';
import { hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';
import { openTest } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const CLUSTERS = [
  ['the embedded API server', false, true],
  ['a real API server', true, hasRealApi()],
] as const;

for (const [name, isReal, isThere] of CLUSTERS)
  describe.skipIf(!isThere)(`on ${name}`, () => {
    const agents: RunningAgent[] = [];
    let cluster: TestCluster;
    let api: RealApi | undefined;
    beforeAll(async () => {
      api = isReal ? await startRealApi(21_000) : undefined;
      cluster = await TestCluster.start(api && { kubeconfig: api.kubeconfig });
      agents.push(cluster.startAgent('node-1'), cluster.startAgent('node-2'));
      await cluster.makeNamespace('app');
      await cluster.makeNamespace('app2');
    });
    afterAll(async () => {
      await cluster[Symbol.asyncDispose]();
      await api?.[Symbol.asyncDispose]();
    });

    it('move a volume into the repository and back, byte for byte, and leave nothing behind', async () => {
      const source = await cluster.makeVolume('app', 'data');
      makeTree(`${source}/tree`, 'lifecycle');
      const snapshot = await cluster.makeSnapshot('app', 'data');
      const { metadata } = await cluster.client.get(VOLUME_SNAPSHOTS, {
        namespace: 'app',
        name: snapshot,
      });
      const takenAt = metadata.creationTimestamp;
      await cluster.createUpload('up1', { namespace: 'app', pvc: 'data', snapshot });
      const upload = await cluster.waitUpload('up1');
      expect(upload.status?.message ?? '').toBe('');
      expect(upload.status).toMatchObject({ phase: 'Completed', nodeOS: 'linux' });
      const { progress, snapshotID = '' } = upload.status ?? {};
      expect(snapshotID).toMatch(/^[0-9a-f]{32}$/);
      expect(progress?.bytesDone).toBe(progress?.totalBytes);
      expect(await cluster.leftovers()).toEqual([]);
      await using repository = await openTest(join(cluster.cluster.storageDirectory, 'kopia/app'), {
        password: DEV_PASSWORD,
      });
      // The files are from that moment, even if the snapshot's volume came much later.
      const { tags, startTimeNs } = await getSnapshot(repository, snapshotID);
      const frozenAtNs = BigInt(tags?.[FROZEN_TAG] ?? 0);
      expect(frozenAtNs).toBe(BigInt(Date.parse(takenAt)) * 1_000_000n);
      expect(frozenAtNs).toBeLessThan(startTimeNs);

      await cluster.makeTarget('app2', 'data');
      await cluster.createDownload('down1', {
        namespace: 'app2',
        pvc: 'data',
        snapshotID,
        sourceNamespace: 'app',
      });
      const download = await cluster.waitDownload('down1');
      expect(download.status?.message ?? '').toBe('');
      expect(download.status?.phase).toBe('Completed');
      const target = await cluster.volumeOf('app2', 'data');
      execFileSync('diff', ['-r', '--no-dereference', source, target]);
      const claim = await cluster.client.get(PVCS, { namespace: 'app2', name: 'data' });
      const volume = await cluster.client.get(PVS, { name: claim.spec.volumeName ?? '' });
      expect(volume.spec.persistentVolumeReclaimPolicy).toBe('Delete');
      expect(await cluster.leftovers()).toEqual([]);
      const namespace = NAMESPACE;
      const ended = [
        await cluster.client.get(DATA_UPLOADS, { namespace, name: 'up1' }),
        await cluster.client.get(DATA_DOWNLOADS, { namespace, name: 'down1' }),
      ];
      for (const { metadata } of ended) expect(metadata.finalizers ?? []).toEqual([]);
      fs.accessSync(target);
      const texts = await Promise.all(agents.map(({ agent }) => agent.metrics.registry.metrics()));
      const metric = (name: string): number =>
        texts
          .flatMap((text) => text.split('\n'))
          .filter((line) => line.startsWith(`${name} `))
          .reduce((sum, line) => sum + Number(line.split(' ')[1]), 0);
      expect(metric('longshore_moved_bytes_total{direction="upload"}')).toBe(progress?.totalBytes);
      expect(metric('longshore_moved_bytes_total{direction="download"}')).toBe(
        progress?.totalBytes,
      );
      expect(metric('longshore_completed_bytes_total{direction="upload"}')).toBe(
        progress?.totalBytes,
      );
      expect(metric('longshore_new_bytes_total')).toBe(progress?.totalBytes);
      for (const direction of ['upload', 'download']) {
        for (const queue of ['accept', 'data-path']) {
          const labels = `direction="${direction}",queue="${queue}"`;
          expect(metric(`longshore_queue_seconds_count{${labels}}`)).toBe(1);
        }
      }
      expect(metric('process_resident_memory_bytes')).toBeGreaterThan(2 ** 20);
    });
  });
