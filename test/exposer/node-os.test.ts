import { describe, expect, it } from 'vitest';
import { systemClock } from '../../src/base/index.ts';
import { assertLinuxVolume, WindowsNodes } from '../../src/exposer/node-os.ts';
import type { PageOptions } from '../../src/kube/client/client.ts';
import type { KubeClient, PersistentVolume, PersistentVolumeClaim } from '../../src/kube/index.ts';

const COUNT = 10_000;
const claim = {
  metadata: { name: 'data', namespace: 'app' },
  spec: { storageClassName: 'fast' },
} as unknown as PersistentVolumeClaim;
const volume = (name: string): PersistentVolume => ({ metadata: { name }, spec: {} }) as never;

/** A cluster with as many attachments: each volume is attached to the node of its number. */
function cluster({ isWindows = false, fsType = 'ext4' } = {}): {
  client: KubeClient;
  asked: string[];
} {
  const asked: string[] = [];
  const os = isWindows ? 'windows' : 'linux';
  const client = {
    list: ({ plural }: { plural: string }) => {
      asked.push(`all ${plural}`);
      return Promise.resolve(isWindows ? [{ metadata: { name: 'node-1' } }] : []);
    },
    listPage: ({ plural }: { plural: string }, { limit = COUNT, continue: from }: PageOptions) => {
      asked.push(`${limit} ${plural}`);
      const start = Number(from ?? 0);
      const items = Array.from({ length: Math.min(limit, COUNT - start) }, (_, i) => ({
        metadata: { name: `va-${start + i}` },
        spec: { nodeName: 'node', source: { persistentVolumeName: `pv-${start + i}` } },
      }));
      const end = start + items.length;
      return Promise.resolve({ items, continue: end < COUNT ? String(end) : undefined });
    },
    find: ({ plural }: { plural: string }) => {
      asked.push(plural);
      return Promise.resolve(
        plural === 'nodes'
          ? { metadata: { name: 'node', labels: { 'kubernetes.io/os': os } } }
          : { metadata: { name: 'fast' }, parameters: { 'csi.storage.k8s.io/fstype': fsType } },
      );
    },
  } as unknown as KubeClient;
  return { client, asked };
}

const look = async (
  { client, asked }: ReturnType<typeof cluster>,
  name: string,
): Promise<string[]> => {
  const windows = new WindowsNodes(client, systemClock);
  await windows.arePresent();
  asked.length = 0;
  await assertLinuxVolume(client, claim, volume(name), windows).catch((error: unknown) => {
    asked.push((error as { code: string }).code);
  });
  return asked;
};

describe('whose system a volume is of, in a cluster with 10,000 attachments', () => {
  it('asks for none of them where there are no Windows nodes', async () => {
    expect(await look(cluster(), 'pv-7')).toEqual(['storageclasses']);
  });

  it('but for volumes that look like those of Windows nodes, which may come back', async () => {
    const pages = Array.from({ length: COUNT / 500 }, () => '500 volumeattachments');
    const ntfs = cluster({ fsType: 'NTFS' });
    expect(await look(ntfs, 'pv-none')).toEqual([
      ...['storageclasses', ...pages],
      ...['storageclasses', 'WINDOWS_UNSUPPORTED'],
    ]);
    expect(await look(ntfs, 'pv-7')).toEqual(['storageclasses', '500 volumeattachments', 'nodes']);
  });

  it('asks page by page, and no further than it has to', async () => {
    expect(await look(cluster({ isWindows: true }), 'pv-700')).toEqual([
      ...['500 volumeattachments', '500 volumeattachments'],
      ...['nodes', 'WINDOWS_UNSUPPORTED'],
    ]);
  });
});
