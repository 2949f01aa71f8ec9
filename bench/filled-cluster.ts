import * as fs from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { CONFIG_MAPS, type KubeClient, NAMESPACES, PVCS, PVS } from '../src/kube/index.ts';

/**
 * A cluster with very many plain objects, for what servers take to back it up and to restore it.
 */

const AT_ONCE = 64;

/** Makes so many objects, many at a time. */
async function make(count: number, one: (index: number) => Promise<unknown>): Promise<void> {
  let next = 0;
  const work = async (): Promise<void> => {
    while (next < count) await one(next++);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

export interface Filling {
  readonly objects: number;
  readonly namespaces: number;
  /** Size of the data of each ConfigMap. */
  readonly bytes: number;
}

/** ConfigMaps `config-N` in namespaces `space-N`. */
export async function fill(
  client: KubeClient,
  { objects, namespaces: spaces, bytes }: Filling,
): Promise<void> {
  const text = 'x'.repeat(bytes);
  await make(spaces, (i) => client.create(NAMESPACES, { metadata: { name: `space-${i}` } }));
  await make(objects, (i) =>
    client.create(CONFIG_MAPS, {
      metadata: { name: `config-${i}`, namespace: `space-${i % spaces}` },
      data: { text },
    }),
  );
}

/** PVCs in the namespace `claims`, with volumes made by hand. */
export async function fillClaims(client: KubeClient, claims: number): Promise<void> {
  await client.create(NAMESPACES, { metadata: { name: 'claims' } });
  await make(claims, async (i) => {
    const name = `volume-${i}`;
    await client.create(PVS, {
      metadata: { name },
      spec: {
        capacity: { storage: '1Gi' },
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'by-hand',
        hostPath: { path: `/${name}` },
        claimRef: { apiVersion: 'v1', kind: 'PersistentVolumeClaim', namespace: 'claims', name },
      },
    });
    await client.create(PVCS, {
      metadata: { name, namespace: 'claims' },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'by-hand',
        volumeName: name,
        resources: { requests: { storage: '1Gi' } },
      },
    });
  });
}

/** Velero takes a claim without a volume for an error. */
export async function untilBound(client: KubeClient): Promise<void> {
  for (;;) {
    const claims = await client.list(PVCS, { namespace: 'claims' });
    if (claims.every(({ status }) => status?.phase === 'Bound')) return;
    await sleep(1000);
  }
}

/** KiB that a process has in memory. */
export const residentOf = (pid: number): number =>
  Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0);

/** User and system time of a process so far. */
export function cpuSecondsOf(pid: number): number {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

/** As Velero's and our server name the phases that nothing follows on. */
export const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;
export const load = (): string => fs.readFileSync('/proc/loadavg', 'utf8').split(' ')[0] ?? '';
export const round = (value: number): number => Math.round(value * 10) / 10;
