import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BackupArchive, type StoredArchive, readTarball } from '../../../src/archive/index.ts';
import { openBucket } from '../../../src/blob/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import { OwnServer } from '../../support/own-server.ts';
import { sharedPackage } from '../../support/package.ts';
import { hasPeers, hasRealApi, peer, type RealApi, startRealApi } from '../../support/real-api.ts';

const run = promisify(execFile);
const PORT = 25_600;
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;

const hasAll = (): boolean => hasRealApi() && hasPeers('velero', 'velero-plugin-for-aws', 'minio');

/** Flags of each backup, for both servers. */
const BACKUPS_MADE: Readonly<Record<string, readonly string[]>> = {
  space: ['--include-namespaces', 'one'],
  spaces: ['--include-namespaces', 'one,two,missing'],
  wildcard: ['--include-namespaces', 't*', '--exclude-namespaces', 'three'],
  'without-secrets': ['--include-namespaces', 'one,two', '--exclude-resources', 'secrets,events'],
  only: ['--include-resources', 'configmaps,deployments.apps', '--include-namespaces', 'one,two'],
  labeled: ['--selector', 'app=web', '--include-namespaces', 'one,two,three'],
  'either-label': ['--or-selector', 'app=web or app=db', '--include-namespaces', 'one,two,three'],
  cluster: ['--include-namespaces', 'one', '--include-cluster-resources=true'],
  'cluster-scoped': [
    ...['--include-namespaces', 'one', '--include-cluster-scoped-resources'],
    'storageclasses,persistentvolumes,clusterroles',
  ],
  'namespace-scoped': ['--include-namespace-scoped-resources', 'configmaps,widgets.example.com'],
  ordered: [
    ...['--include-namespaces', 'one,two', '--ordered-resources'],
    'configmaps=one/c,one/a;pods=two/p',
  ],
  'filter-policies': [
    ...['--include-namespaces', 'one,two,three', '--resource-policies-configmap', 'fine'],
    ...['--include-cluster-scoped-resources', 'storageclasses,clusterroles,priorityclasses'],
  ],
  'include-exclude-policy': [
    ...['--include-namespaces', 'one,two', '--resource-policies-configmap', 'coarse'],
  ],
  'whole-without-ours': [
    '--exclude-namespaces',
    'velero,kube-system',
    '--exclude-resources',
    'events',
  ],
};

/** Annotations that only Longshore's servers write. */
const OURS = ['longshore.io/made-by', 'longshore.io/signed'];
/** ConfigMaps of resource policies, in the server's namespace. */
const POLICIES = {
  fine: `version: v1
namespacedFilterPolicies:
  - namespaces: ['t*']
    resourceFilters:
      - kinds: [configmaps]
        labelSelector: {matchLabels: {app: db}}
        excludedNames: [c]
      - kinds: [Secret, widgets]
  - namespaces: [three]
    resourceFilters:
      - kinds: ['*']
        orLabelSelectors:
          - matchLabels: {app: web}
          - matchExpressions: [{key: team, operator: Exists}]
clusterScopedFilterPolicy:
  resourceFilters:
    - kinds: [clusterroles]
      names: [runs, 'system:b*']
`,
  coarse: `version: v1
includeExcludePolicy:
  includedClusterScopedResources: [priorityclasses]
  excludedNamespaceScopedResources: [secrets, services]
`,
};
/** Kinds that change at any time. */
const MOVING = [
  'events',
  'events.events.k8s.io',
  'leases.coordination.k8s.io',
  'endpointslices.discovery.k8s.io',
];

describe.skipIf(!hasAll())('one cluster, backed up by the real Velero and by our server', () => {
  let api: RealApi;
  let server: OwnServer | undefined;

  beforeAll(async () => {
    api = await startRealApi(PORT, { hasVeleroCrds: true });
    await api.stack('up', 's3');
    const yaml = join(api.directory, 'objects.yaml');
    fs.writeFileSync(
      yaml,
      JSON.stringify({ apiVersion: 'v1', kind: 'List', items: definitions() }),
    );
    await api.kubectl('apply', '-f', yaml);
    await api.kubectl('wait', '--for=condition=Established', 'crd/widgets.example.com');
    // Velero looks up the served kinds every five minutes.
    await api.stack('up', 'velero');
    fs.writeFileSync(yaml, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects() }));
    await api.kubectl('apply', '-f', yaml);
    await api.kubectl('-n', 'one', 'wait', '--for=create', 'pod', '-l', 'app=web', '--timeout=60s');
    await api.kubectl(
      ...['-n', 'one', 'wait', '--for=jsonpath={.status.phase}=Bound', 'pvc/data', '--timeout=60s'],
    );
  }, 240_000);
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await api[Symbol.asyncDispose]();
  });

  const velero = async (...parameters: string[]): Promise<string> => {
    const options = { env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: api.directory } };
    return (await run(peer('velero'), ['-n', 'velero', ...parameters], options)).stdout;
  };

  async function make(name: string, flags: readonly string[]): Promise<KubeObject> {
    await velero('backup', 'create', name, ...flags, '--snapshot-volumes=false');
    for (;;) {
      const text = await api.kubectl(
        '-n',
        'velero',
        'get',
        `backup.velero.io/${name}`,
        '-o',
        'json',
      );
      const backup = JSON.parse(text) as KubeObject & { status?: { phase?: string } };
      const { phase = '' } = backup.status ?? {};
      // The bucket has no files of a failed backup, and so no reason.
      if (phase.startsWith('Failed')) throw new Error(`${name}: ${JSON.stringify(backup.status)}`);
      if (FINAL.test(phase)) return backup;
      await sleep(100);
    }
  }

  function startOurs(): OwnServer {
    const home = join(api.directory, 'own-home');
    fs.mkdirSync(home, { recursive: true });
    return OwnServer.start({
      program: join(sharedPackage(), 'bin/longshore'),
      parameters: [
        ...['server', '--namespace', 'velero', '--metrics-address', '127.0.0.1:0'],
        ...[
          '--plugin-dir',
          join(api.directory, 'plugins'),
          '--item-operation-sync-frequency',
          '1s',
        ],
        ...['--features', 'EnableCSI'],
      ],
      env: { ...process.env, KUBECONFIG: api.kubeconfig, HOME: home, TMPDIR: home },
      log: join(api.directory, 'own-server.log'),
    });
  }

  interface Read {
    readonly backup: KubeObject;
    readonly entries: Map<string, string>;
    readonly resourceList: unknown;
    readonly results: unknown;
    readonly volumeInfos: unknown;
    readonly metadata: unknown;
    readonly files: readonly string[];
  }

  /** All files of a backup's folder, without values that differ between two backups. */
  async function read(backup: KubeObject): Promise<Read> {
    const { name } = backup.metadata;
    const location = `s3://velero?endpoint=http://127.0.0.1:${PORT + 3}&region=us-east-1`;
    process.env.AWS_ACCESS_KEY_ID = 'peersaccess';
    process.env.AWS_SECRET_ACCESS_KEY = 'peerssecret';
    await using bucket = await openBucket(location);
    const archive: StoredArchive = await new BackupArchive(bucket).open(name);
    const entries = new Map<string, string>();
    for await (const { path, bytes } of readTarball(archive.read('contents'), 'contents')) {
      if (MOVING.some((type) => path.startsWith(`resources/${type}/`))) continue;
      entries.set(path, bytes.toString('utf8'));
    }
    const files: string[] = [];
    for await (const key of bucket.list(`backups/${name}/`)) {
      const file = key.slice(`backups/${name}/`.length).replace(name, 'NAME');
      if (!file.startsWith('longshore-')) files.push(file);
    }
    const without = (list: Readonly<Record<string, readonly string[]>>): object =>
      Object.fromEntries(
        Object.entries(list).filter(([kind]) => !/Event$|Lease$|EndpointSlice$/.test(kind)),
      );
    return {
      backup,
      entries,
      resourceList: without(await archive.resourceList()),
      results: JSON.parse(JSON.stringify(await archive.results()).replaceAll(name, 'NAME')),
      volumeInfos: await archive.volumeInfos(),
      metadata: archive.metadata,
      files: files.sort(),
    };
  }

  /** The fields of a Backup that are the same for each backup. */
  function comparable(object: unknown): unknown {
    // Go writes null without a group.
    const copy = JSON.parse(
      JSON.stringify(object).replaceAll('"apiGroup":null,', ''),
    ) as KubeObject & {
      status?: Record<string, unknown>;
      spec?: unknown;
    };
    const { labels, annotations } = copy.metadata;
    const own = ['startTimestamp', 'completionTimestamp', 'expiration', 'progress'];
    const all = Object.entries(copy.status ?? {});
    const status = Object.fromEntries(all.filter(([key]) => !own.includes(key)));
    const there = all.map(([key]) => key).sort();
    return {
      labels,
      annotations: Object.keys(annotations ?? {})
        .filter((key) => !OURS.includes(key))
        .sort(),
      status,
      spec: copy.spec,
      there,
    };
  }

  it('is the same, file by file', async () => {
    const theirs = new Map<string, Read>();
    for (const [name, flags] of Object.entries(BACKUPS_MADE)) {
      theirs.set(name, await read(await make(`theirs-${name}`, flags)));
    }
    await api.stack('down', 'velero');
    server = startOurs();
    for (const [name, flags] of Object.entries(BACKUPS_MADE)) {
      const ours = await read(await make(`ours-${name}`, flags));
      const expected = theirs.get(name) as Read;
      expect
        .soft([...ours.entries.keys()].sort(), name)
        .toEqual([...expected.entries.keys()].sort());
      const changed = [...ours.entries].filter(([path, text]) => {
        const other = expected.entries.get(path);
        // Controllers change status and versions.
        return other !== undefined && stable(text) !== stable(other);
      });
      expect
        .soft(
          changed.map(([path]) => path),
          name,
        )
        .toEqual([]);
      expect.soft(ours.resourceList, name).toEqual(expected.resourceList);
      expect.soft(ours.results, name).toEqual(expected.results);
      expect.soft(ours.volumeInfos, name).toEqual(expected.volumeInfos);
      expect.soft(ours.files, name).toEqual(expected.files);
      expect.soft(comparable(ours.backup), name).toEqual(comparable(expected.backup));
      expect.soft(comparable(ours.metadata), name).toEqual(comparable(expected.metadata));
    }
  }, 400_000);

  it("tells Velero's CLI what it asks for", async () => {
    const described = await velero(
      'backup',
      'describe',
      'ours-space',
      '--details',
      '--colorized=false',
    );
    expect(described).toMatch(/Phase:\s+Completed/);
    expect(described).toContain('one/a');
    expect(await velero('backup', 'logs', 'ours-space')).toContain('level=info');
    expect(await velero('backup', 'get')).toContain('ours-space');
    expect(await velero('backup-location', 'get')).toContain('Available');
    expect(await velero('version')).toMatch(/Server:\s+Version: v/);
    const target = join(api.directory, 'download.tar.gz');
    await velero('backup', 'download', 'ours-space', '-o', target);
    const { stdout } = await run('tar', ['tzf', target]);
    expect(stdout).toContain('resources/configmaps/namespaces/one/a.json');
  }, 60_000);
});

/** Removes fields that controllers change at any time. */
function stable(text: string): string {
  if (!text.startsWith('{')) return text;
  const { metadata, ...rest } = JSON.parse(text) as KubeObject;
  const others = Object.entries(metadata).filter(
    ([key]) => !['resourceVersion', 'managedFields'].includes(key),
  );
  return JSON.stringify({ metadata: others, ...rest, status: undefined });
}

const inSpace = (
  kind: string,
  apiVersion: string,
  namespace: string | undefined,
  name: string,
  more: object = {},
): object => {
  const { labels, annotations, ...rest } = more as { labels?: object; annotations?: object };
  const metadata = {
    name,
    ...(namespace !== undefined && { namespace }),
    ...(labels && { labels }),
    ...(annotations && { annotations }),
  };
  return { kind, apiVersion, metadata, ...rest };
};

function definitions(): object[] {
  return [
    ...['one', 'two', 'three'].map((name) =>
      inSpace('Namespace', 'v1', undefined, name, { labels: { team: name } }),
    ),
    inSpace('Namespace', 'v1', undefined, 'left-out', {
      labels: { 'velero.io/exclude-from-backup': 'true' },
    }),
    inSpace(
      'CustomResourceDefinition',
      'apiextensions.k8s.io/v1',
      undefined,
      'widgets.example.com',
      {
        spec: {
          group: 'example.com',
          scope: 'Namespaced',
          names: { kind: 'Widget', plural: 'widgets', singular: 'widget', listKind: 'WidgetList' },
          versions: [
            {
              name: 'v1',
              served: true,
              storage: true,
              schema: {
                openAPIV3Schema: {
                  type: 'object',
                  properties: {
                    spec: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
                  },
                },
              },
            },
          ],
        },
      },
    ),
  ];
}

function objects(): object[] {
  const podSpec = {
    serviceAccountName: 'runner',
    priorityClassName: 'urgent',
    containers: [{ name: 'c', image: 'busybox', command: ['sleep', '1'] }],
  };
  const template = { metadata: { labels: { app: 'web' } }, spec: podSpec };
  return [
    inSpace('PriorityClass', 'scheduling.k8s.io/v1', undefined, 'urgent', { value: 1000 }),
    inSpace('StorageClass', 'storage.k8s.io/v1', undefined, 'dir', {
      provisioner: 'dir.csi.longshore.dev',
      volumeBindingMode: 'WaitForFirstConsumer',
    }),
    ...['one', 'two', 'three'].flatMap((space) => [
      inSpace('ServiceAccount', 'v1', space, 'runner'),
      ...['a', 'b', 'c'].map((name) =>
        inSpace('ConfigMap', 'v1', space, name, {
          labels: { app: name === 'a' ? 'web' : 'db' },
          data: { text: `<${name}> & "quotes" \u2028 ü 漢`, number: '12345678901234567890' },
        }),
      ),
      inSpace('Secret', 'v1', space, 'secret', {
        data: { key: Buffer.from(space).toString('base64') },
      }),
      inSpace('Secret', 'v1', space, 'left-out', {
        labels: { 'velero.io/exclude-from-backup': 'true' },
        data: {},
      }),
      inSpace('Service', 'v1', space, 'web', {
        labels: { app: 'web' },
        spec: { selector: { app: 'web' }, ports: [{ port: 80 }] },
      }),
      inSpace('NetworkPolicy', 'networking.k8s.io/v1', space, 'closed', {
        ...(space === 'three' && { labels: { team: 'network' } }),
        spec: { podSelector: {}, policyTypes: ['Ingress'] },
      }),
      inSpace('Role', 'rbac.authorization.k8s.io/v1', space, 'reader', {
        rules: [{ apiGroups: [''], resources: ['pods'], verbs: ['get'] }],
      }),
      inSpace('Deployment', 'apps/v1', space, 'web', {
        labels: { app: 'web' },
        spec: { replicas: 1, selector: { matchLabels: { app: 'web' } }, template },
      }),
      inSpace('Widget', 'example.com/v1', space, 'w', {
        spec: { big: 9007199254740993, list: [1.5, 'x', null, true], 'odd key': {} },
      }),
    ]),
    ...Object.entries(POLICIES).map(([name, text]) =>
      inSpace('ConfigMap', 'v1', 'velero', name, { data: { policies: text } }),
    ),
    inSpace('ClusterRole', 'rbac.authorization.k8s.io/v1', undefined, 'runs', {
      rules: [{ apiGroups: [''], resources: ['nodes'], verbs: ['list'] }],
    }),
    inSpace('ClusterRoleBinding', 'rbac.authorization.k8s.io/v1', undefined, 'one-runs', {
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: 'runs' },
      subjects: [{ kind: 'ServiceAccount', name: 'runner', namespace: 'one' }],
    }),
    inSpace('PersistentVolume', 'v1', undefined, 'pv-one', {
      spec: {
        capacity: { storage: '1Gi' },
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'by-hand',
        hostPath: { path: '/var/lib/one' },
        claimRef: {
          apiVersion: 'v1',
          kind: 'PersistentVolumeClaim',
          namespace: 'one',
          name: 'data',
        },
      },
    }),
    inSpace('PersistentVolumeClaim', 'v1', 'one', 'data', {
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'by-hand',
        volumeName: 'pv-one',
        resources: { requests: { storage: '1Gi' } },
      },
    }),
    inSpace('Pod', 'v1', 'two', 'p', {
      labels: { app: 'db' },
      spec: { ...podSpec, priorityClassName: undefined },
    }),
  ];
}
