import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { loadParents } from '../../../src/agent/mover/client-pod.ts';
import { silentLogger } from '../../../src/base/index.ts';
import type { PodVolumeBackup } from '../../../src/kube/index.ts';
import { aPod, aPodVolumeBackup } from '../../support/builders.ts';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

const PVC_UID = 'velero.io/pvc-uid';
const pod = aPod({ metadata: { name: 'web-0', namespace: 'app' }, spec: {} });

const backupOf = (index: number, podName: string, podUid: string, labels = {}): PodVolumeBackup =>
  aPodVolumeBackup({
    metadata: { name: `pvb-${index}`, namespace: 'velero', uid: `uid-${index}`, labels },
    spec: {
      volume: 'cache',
      backupStorageLocation: 'default',
      uploaderType: 'kopia',
      pod: { namespace: 'app', name: podName, uid: podUid },
    },
    status: {
      phase: 'Completed',
      snapshotID: `snapshot-${index}`,
      startTimestamp: new Date(1_700_000_000_000 + index * 1000).toISOString(),
    },
  });

/**
 * Namespaces with the wanted number of PodVolumeBackups. They are created when a client requests
 * their page.
 */
class ManyBackups {
  readonly limits = new Set<number | undefined>();
  readonly pages: WeakRef<object>[] = [];
  /** Number of earlier pages in memory when a client requested the next page. */
  heldMax = 0;
  warnings: string[] = [];
  readonly #count: number;
  readonly #make: (index: number) => PodVolumeBackup;

  constructor(count: number, make: (index: number) => PodVolumeBackup) {
    this.#count = count;
    this.#make = make;
  }

  async listPage(
    _resource: unknown,
    { limit, continue: from = '0' }: { limit: number; continue?: string },
  ): Promise<object> {
    this.limits.add(limit);
    // Seldom, since it takes long.
    if (this.pages.length % 20 === 19) {
      // A WeakRef is only let go of after the task that made it.
      await new Promise(setImmediate);
      collect();
      const held = this.pages.filter((page) => page.deref() !== undefined).length;
      this.heldMax = Math.max(this.heldMax, held);
    }
    const start = Number(from);
    const end = Math.min(start + limit, this.#count);
    const items = Array.from({ length: end - start }, (_, i) => this.#make(start + i));
    if (items[0]) this.pages.push(new WeakRef(items[0]));
    return { items, resourceVersion: '1', continue: end < this.#count ? `${end}` : undefined };
  }

  parents(own: PodVolumeBackup, stored: { id: string; uid: string | undefined }[]) {
    const warn = (fields: { error?: string }, text: string): void => {
      this.warnings.push(`${text}: ${fields.error ?? ''}`);
    };
    const logger = { ...silentLogger, warn } as never;
    const options = { client: this as never, logger, timeoutMs: 1000 };
    return loadParents(own, pod, stored, options, new AbortController().signal);
  }
}

describe('parents among very many PodVolumeBackups', () => {
  const own = backupOf(-1, 'web-0', 'pod-1');

  it('are found page by page, and no page is held', async () => {
    const ofPod = new Map([
      [10, 'pod-1'],
      [29_990, 'pod-0'],
    ]);
    const many = new ManyBackups(30_000, (index) =>
      backupOf(index, ofPod.has(index) ? 'web-0' : `pod-${index}`, ofPod.get(index) ?? 'other'),
    );
    const { isParent, more } = await many.parents(own, [
      { id: 'snapshot-10', uid: undefined },
      { id: 'by its uid', uid: 'uid-10' },
      { id: 'snapshot-29990', uid: 'uid-29990' },
      { id: 'nobody names it', uid: undefined },
    ]);
    const ids = ['snapshot-10', 'snapshot-29990', 'nobody names it'];
    expect(ids.map((id) => isParent?.({ id, uid: undefined }))).toEqual([true, false, false]);
    expect(isParent?.({ id: 'by its uid', uid: 'uid-10' })).toBe(true);
    // The UID counts: it names a PodVolumeBackup of another volume.
    expect(isParent?.({ id: 'snapshot-10', uid: 'uid-29990' })).toBe(false);
    expect(more).toEqual([]);
    expect([...many.limits]).toEqual([500]);
    expect(many.pages.length).toBe(60);
    expect(many.heldMax).toBeLessThanOrEqual(1);
    expect(many.warnings).toEqual([]);
  });

  it('are given up beyond so many pages: every file is read, and that is told', async () => {
    const many = new ManyBackups(50_001, (index) =>
      backupOf(index, 'web-0', 'pod-1', { [PVC_UID]: 'pvc-1' }),
    );
    const stored = [{ id: 'snapshot-1', uid: 'uid-1' }];
    const own2 = backupOf(-1, 'web-0', 'pod-1', { [PVC_UID]: 'pvc-1' });
    for (const backup of [own, own2]) {
      const { isParent, more } = await many.parents(backup, stored);
      expect(isParent?.({ id: 'snapshot-1', uid: 'uid-1' })).toBe(false);
      expect(more).toEqual([]);
    }
    expect(many.pages.length).toBe(200);
    const text =
      'earlier backups of the volume could not be listed: there are more than 50000 PodVolumeBackups in namespace velero';
    expect(many.warnings).toEqual([text, text]);
  });

  it('of the same PVC come newest first', async () => {
    const many = new ManyBackups(1200, (index) =>
      backupOf(index, `web-${index}`, 'other', { [PVC_UID]: 'pvc-1' }),
    );
    const { more } = await many.parents(backupOf(-1, 'web-0', 'pod-1', { [PVC_UID]: 'pvc-1' }), []);
    expect(more?.length).toBe(1200);
    expect(more?.slice(0, 2)).toEqual(['snapshot-1199', 'snapshot-1198']);
    expect(many.pages.length).toBe(3);
  });
});
