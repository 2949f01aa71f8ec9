import type { PodObject, PvcObject, PvObject } from '../../../src/volume-policy/index.ts';

/** What the cases are made of: a small cluster and many policies, the same for each seed. */
export interface World {
  readonly volumes: PvObject[];
  readonly claims: PvcObject[];
  readonly pods: PodObject[];
}

export interface Case {
  readonly policies: string | null;
  readonly global: string | null;
  readonly snapshotVolumes: boolean | null;
  readonly defaultToFiles: boolean;
  readonly backupExcludePVC: boolean;
  readonly matchParameters: Record<string, unknown>;
}

/** Numbers from a seed (mulberry32). */
export function dice(seed: number): {
  below: (n: number) => number;
  oneOf: <T>(list: readonly T[]) => T;
  chance: (share: number) => boolean;
  some: <T>(list: readonly T[]) => T[];
} {
  let state = seed;
  const next = (): number => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (n: number): number => Math.floor(next() * n);
  return {
    below,
    oneOf: (list) => list[below(list.length)] as (typeof list)[number],
    chance: (share) => next() < share,
    some: (list) => list.filter(() => next() < 0.4),
  };
}

const NAMESPACES = ['app', 'db'];
const CLASSES = ['gp2', 'gp3', ''];
const SIZES = ['1Gi', '10Gi', '100Gi', '5368709120', '1500M', '1.5Gi', '0.5Ki', '1e3', '100m', '0'];
const LABELS = { env: ['prod', 'dev', ''], tier: ['1', 'gold'] };
const PHASES = ['Bound', 'Bound', 'Bound', 'Pending', 'Lost'];
const MODES = ['ReadWriteOnce', 'ReadOnlyMany', 'ReadWriteMany'];
const VOLUME_MODES = ['Filesystem', 'Block'];
const ATTRIBUTES = [undefined, {}, { protocol: 'nfs' }, { protocol: 'smb', zone: 'a' }];
const IN_PODS = ['app-data', 'data', 'cache', 'default-token-x'];
const OPT_IN = 'backup.velero.io/backup-volumes';

export function makeWorld(seed: number, claimCount = 24): World {
  const { oneOf, chance, below, some } = dice(seed);
  const volumes: PvObject[] = [];
  const claims: PvcObject[] = [];
  const source = (): Record<string, unknown> =>
    oneOf<() => Record<string, unknown>>([
      () => {
        const volumeAttributes = oneOf(ATTRIBUTES);
        const driver = oneOf(['ebs.csi.aws.com', 'files.csi']);
        return { csi: { driver, volumeHandle: 'v', ...(volumeAttributes && { volumeAttributes }) } };
      },
      () => ({ nfs: { server: oneOf(['10.0.0.1', 'nfs']), path: oneOf(['/a', '/b']) } }),
      () => ({ hostPath: { path: '/x' } }),
      () => ({ local: { path: '/x' } }),
      () => ({ awsElasticBlockStore: { volumeID: 'v' } }),
      () => ({ storageos: { volumeName: 'v' } }),
      () => ({ rbd: { monitors: ['m'], image: 'i' } }),
    ])();
  for (let i = 0; i < claimCount; i++) {
    const [name, namespace, uid] = [`pvc-${i}`, oneOf(NAMESPACES), `uid-${i}`];
    const phase = oneOf(PHASES);
    const hasVolume = phase === 'Bound' || chance(0.3);
    const storageClassName = oneOf(CLASSES);
    const labels = Object.fromEntries(
      some(Object.entries(LABELS)).map(([key, values]) => [key, oneOf(values)]),
    );
    claims.push({
      metadata: { name, namespace, uid, ...(Object.keys(labels).length > 0 && { labels }) },
      spec: {
        ...(chance(0.8) && { accessModes: some(MODES) }),
        ...(storageClassName !== '' && { storageClassName }),
        ...(chance(0.8) && { volumeMode: oneOf(VOLUME_MODES) }),
        ...(hasVolume && { volumeName: `pv-${i}` }),
        resources: { requests: { storage: oneOf(SIZES) } },
      },
      status: { phase },
    });
    // Sometimes it is gone.
    if (!hasVolume || chance(0.1)) continue;
    volumes.push({
      metadata: { name: `pv-${i}`, uid: `pv-uid-${i}` },
      spec: {
        capacity: { storage: oneOf(SIZES) },
        ...(storageClassName !== '' && { storageClassName }),
        claimRef: { namespace, name, uid },
        ...source(),
      },
    });
  }
  for (let i = 0; i < 4; i++) {
    volumes.push({
      metadata: { name: `free-${i}`, uid: `free-uid-${i}` },
      spec: { capacity: { storage: oneOf(SIZES) }, ...source() },
    });
  }
  const podSource = (namespace: string): Record<string, unknown> => {
    const mine = claims.filter(({ metadata }) => metadata.namespace === namespace);
    return oneOf<() => Record<string, unknown>>([
      () => ({ persistentVolumeClaim: { claimName: oneOf(mine).metadata.name } }),
      () => ({ persistentVolumeClaim: { claimName: oneOf(mine).metadata.name } }),
      () => ({ persistentVolumeClaim: { claimName: chance(0.2) ? 'gone' : oneOf(mine).metadata.name } }),
      () => ({ emptyDir: {} }),
      () => ({ nfs: { server: oneOf(['10.0.0.1', 'nfs']), path: oneOf(['/a', '/b']) } }),
      () => ({ csi: { driver: oneOf(['ebs.csi.aws.com', 'files.csi']), volumeAttributes: { protocol: 'nfs' } } }),
      () => ({ secret: { secretName: 's' } }),
      () => ({ configMap: { name: 'c' } }),
      () => ({ hostPath: { path: '/x' } }),
      () => ({ projected: { sources: [] } }),
      () => ({ downwardAPI: { items: [] } }),
      () => ({ ephemeral: { volumeClaimTemplate: { spec: {} } } }),
      () => ({ gitRepo: { repository: 'r' } }),
    ])();
  };
  const pods = Array.from({ length: 12 }, (_, i): PodObject => {
    const namespace = oneOf(NAMESPACES);
    const volumesOfPod = IN_PODS.slice(0, 1 + below(IN_PODS.length)).map((name) => ({
      name,
      ...podSource(namespace),
    }));
    const listed = oneOf(['', 'data', 'data,cache', 'data, cache', 'app-data', 'data,default-token-x']);
    const excluded = oneOf(['', 'data', 'cache,app-data', ' data']);
    const annotations = {
      ...(chance(0.5) && { [OPT_IN]: listed }),
      ...(chance(0.5) && { [`${OPT_IN}-excludes`]: excluded }),
    };
    return {
      metadata: { name: `pod-${i}`, namespace, uid: `pod-uid-${i}`, annotations },
      spec: { nodeName: 'n', containers: [{ name: 'c' }] as object[], volumes: volumesOfPod },
      status: { phase: 'Running' },
    };
  });
  return { volumes, claims, pods };
}

const CONDITIONS: readonly string[] = [
  'capacity: "0,10Gi"',
  'capacity: "10Gi,"',
  'capacity: ",1.5Gi"',
  'capacity: "1500M,5Gi"',
  'capacity: "5368709120,5Gi"',
  'capacity: " 1Gi , 0 "',
  'capacity: "0.0001,1k"',
  'capacity: ","',
  'capacity: "-1,1"',
  'storageClass: [gp2]',
  'storageClass: [gp3, ""]',
  'storageClass: [""]',
  'storageClass: []',
  'nfs: {}',
  'nfs: {server: 10.0.0.1}',
  'nfs: {path: /a}',
  'nfs: {server: nfs, path: /b}',
  'nfs: null',
  'csi: {}',
  'csi: {driver: ebs.csi.aws.com}',
  'csi: {driver: files.csi, volumeAttributes: {protocol: nfs}}',
  'csi: {driver: files.csi, volumeAttributes: {missing: ""}}',
  'csi: {driver: files.csi, volumeAttributes: null}',
  'volumeTypes: [csi, nfs]',
  'volumeTypes: [hostPath, local, storageOS]',
  'volumeTypes: [storageos]',
  'volumeTypes: [emptyDir, ephemeral, gitRepo]',
  'volumeTypes: [awsElasticBlockStore, rbd, secret]',
  'volumeTypes: [""]',
  'pvcLabels: {env: prod}',
  'pvcLabels: {env: ""}',
  'pvcLabels: {env: dev, tier: gold}',
  'pvcLabels: {tier: 1}',
  'pvcLabels: {tier: 01}',
  'pvcLabels: {}',
  'pvcPhase: [Bound]',
  'pvcPhase: [Pending, Lost]',
  'pvcPhase: [""]',
  'pvcVolumeMode: Block',
  'pvcVolumeMode: Filesystem',
  'pvcVolumeMode: ""',
  'pvcAccessModes: [ReadWriteOnce]',
  'pvcAccessModes: [ReadOnlyMany, ReadWriteOnce]',
  'pvcAccessModes: [ReadWriteMany, ReadWriteMany]',
  'pvcAccessModes: []',
];
const ACTIONS: readonly string[] = [
  'type: skip',
  'type: fs-backup',
  'type: snapshot',
  'type: snapshot',
  'type: custom',
  'type: custom, parameters: {mover: acme}',
  'type: custom, parameters: {mover: acme, level: 3, deep: {a: [1, true]}}',
];

export function makeCases(seed: number, count: number): Case[] {
  const { oneOf, chance, below } = dice(seed);
  const document = (): string => {
    const rules = Array.from({ length: 1 + below(4) }, () => {
      const conditions = new Map(
        Array.from({ length: below(4) }, () => oneOf(CONDITIONS)).map((text) => [
          text.split(':')[0],
          text,
        ]),
      );
      return `- conditions: {${[...conditions.values()].join(', ')}}\n  action: {${oneOf(ACTIONS)}}\n`;
    });
    return `version: v1\nvolumePolicies:\n${rules.join('')}`;
  };
  return Array.from({ length: count }, () => ({
    policies: chance(0.9) ? document() : null,
    global: chance(0.25) ? document() : null,
    snapshotVolumes: oneOf([null, true, false]),
    defaultToFiles: chance(0.5),
    backupExcludePVC: chance(0.2),
    matchParameters: oneOf<Record<string, unknown>>([{}, { mover: 'acme' }, { mover: 'acme', level: 3 }, { other: 1 }]),
  }));
}
