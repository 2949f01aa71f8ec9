import { execFile } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ApiServer } from '../../src/dev/index.ts';
import { hasRealApi, peer, type RealApi, startRealApi } from '../support/real-api.ts';
import { checkedInSchemas, realSchemas } from '../support/real-schemas.ts';

const KUBECTL = peer('kubectl');

interface Said {
  readonly out: string;
  readonly error: string;
}

/** A server with the objects below, and a home for what kubectl remembers of it. */
interface Server {
  readonly kubeconfig: string;
  readonly home: string;
}

function kubectl({ kubeconfig, home }: Server, line: string, input = ''): Promise<Said> {
  const env = { PATH: process.env.PATH ?? '', HOME: home, KUBECONFIG: kubeconfig };
  return new Promise((resolve) => {
    // These lines have no quotes, so spaces separate the words.
    const child = execFile(KUBECTL, line.split(' '), { env }, (_error, out, error) => {
      resolve({ out, error });
    });
    child.stdin?.on('error', () => undefined);
    child.stdin?.end(input);
  });
}

const AGE = /(?<![\w.-])\d+(s|m|m\d+s)(?![\w.-])/g;
const plain = (text: string): string => text.replace(AGE, 'AGE').replace(/ +/g, ' ').trim();
/** What only a real one says, of users that the embedded one does not have. */
const withoutSystem = (text: string): string =>
  text.replaceAll(/^(?: +\[\/|selfsubject).*\n/gm, '');

const metadata = (name: string, namespace?: string): object => ({ name, namespace });
const SPEC = { storageClassName: 'manual', accessModes: ['ReadWriteOnce'] };
const SIZE = { storage: '1Gi' };
const TEMPLATE = {
  metadata: { labels: { app: 'set' } },
  spec: { containers: [{ name: 'c', image: 'image' }], nodeSelector: { none: 'such' } },
};
const OBJECTS = [
  [
    'v1',
    'PersistentVolumeClaim',
    metadata('claim', 'kind'),
    { spec: { ...SPEC, resources: { requests: SIZE } } },
  ],
  [
    'v1',
    'PersistentVolume',
    metadata('volume'),
    {
      spec: {
        ...SPEC,
        storageClassName: 'other',
        capacity: SIZE,
        csi: { driver: 'd', volumeHandle: 'h' },
      },
    },
  ],
  [
    'v1',
    'Node',
    metadata('machine'),
    { metadata: { name: 'machine', labels: { 'node-role.kubernetes.io/worker': '' } } },
  ],
  [
    'v1',
    'Pod',
    metadata('pod', 'kind'),
    {
      spec: {
        nodeName: 'machine',
        terminationGracePeriodSeconds: 0,
        containers: [{ name: 'c', image: 'image' }],
      },
    },
  ],
  ['v1', 'Secret', metadata('secret', 'kind'), { stringData: { a: 'b' } }],
  ['v1', 'ConfigMap', metadata('map', 'kind'), { data: { a: 'b' }, binaryData: { c: 'AAAA' } }],
  ['v1', 'ServiceAccount', metadata('account', 'kind'), {}],
  ...['2026-01-01T00:00:03Z', '2026-01-01T00:00:01Z', '2026-01-01T00:00:02Z'].map(
    (time, index) =>
      [
        'v1',
        'Event',
        metadata(`event-${index}`, 'kind'),
        {
          involvedObject: { kind: 'Pod', name: 'pod', namespace: 'kind', apiVersion: 'v1' },
          type: 'Normal',
          reason: `Reason${index}`,
          message: `at ${time}`,
          firstTimestamp: time,
          lastTimestamp: time,
          count: index + 1,
          source: { component: 'test', host: 'machine' },
        },
      ] as const,
  ),
  [
    'apps/v1',
    'DaemonSet',
    metadata('set', 'kind'),
    { spec: { selector: { matchLabels: { app: 'set' } }, template: TEMPLATE } },
  ],
  [
    'storage.k8s.io/v1',
    'StorageClass',
    { name: 'first', annotations: { 'storageclass.kubernetes.io/is-default-class': 'true' } },
    { provisioner: 'd' },
  ],
  [
    'storage.k8s.io/v1',
    'StorageClass',
    metadata('second'),
    {
      provisioner: 'd',
      reclaimPolicy: 'Retain',
      volumeBindingMode: 'WaitForFirstConsumer',
      allowVolumeExpansion: true,
    },
  ],
  [
    'storage.k8s.io/v1',
    'VolumeAttachment',
    metadata('attachment'),
    { spec: { attacher: 'd', nodeName: 'machine', source: { persistentVolumeName: 'volume' } } },
  ],
  ['scheduling.k8s.io/v1', 'PriorityClass', metadata('high'), { value: 1000 }],
  [
    'snapshot.storage.k8s.io/v1',
    'VolumeSnapshotClass',
    metadata('class'),
    { driver: 'd', deletionPolicy: 'Delete' },
  ],
  [
    'snapshot.storage.k8s.io/v1',
    'VolumeSnapshot',
    metadata('snapshot', 'kind'),
    { spec: { source: { persistentVolumeClaimName: 'claim' } } },
  ],
  [
    'snapshot.storage.k8s.io/v1',
    'VolumeSnapshotContent',
    metadata('content'),
    {
      spec: {
        driver: 'd',
        deletionPolicy: 'Retain',
        source: { volumeHandle: 'h' },
        volumeSnapshotRef: { name: 'snapshot', namespace: 'kind' },
      },
    },
  ],
  [
    'velero.io/v2alpha1',
    'DataUpload',
    metadata('upload', 'kind'),
    {
      spec: {
        snapshotType: 'CSI',
        sourcePVC: 'p',
        sourceNamespace: 'n',
        backupStorageLocation: 'l',
        operationTimeout: '1m',
      },
      status: { phase: 'InProgress', progress: { bytesDone: 1, totalBytes: 2 } },
    },
  ],
  [
    'velero.io/v1',
    'BackupStorageLocation',
    metadata('location', 'kind'),
    {
      spec: { provider: 'p', objectStorage: { bucket: 'b' }, default: true },
      status: { phase: 'Available' },
    },
  ],
].map(([apiVersion, kind, meta, rest]) => ({
  apiVersion,
  kind,
  metadata: meta,
  ...(rest as object),
}));

/**
 * The first commands that a user types on a new cluster. Each sees the effects of the earlier
 * commands.
 */
const FIRST: [line: string, input?: string][] = [
  ['create namespace kind'],
  ['create namespace kind'],
  ['create -f -', OBJECTS.map((object) => JSON.stringify(object)).join('\n')],
  [
    'patch pod pod -n kind --subresource=status --type=merge -p {"status":{"phase":"Running","podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}],"containerStatuses":[{"name":"c","image":"i","imageID":"","ready":true,"restartCount":2,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}',
  ],
  [
    'patch node machine --subresource=status --type=merge -p {"status":{"conditions":[{"type":"Ready","status":"True"}]}}',
  ],
  ['patch pv volume -o name --subresource=status --type=merge -p {"status":{"phase":"Available"}}'],
  ['create configmap made -n kind --from-literal=a=b --from-literal=c=d'],
  ['create secret generic made -n kind --from-literal=a=b'],
  ['create serviceaccount made -n kind'],
  ['create priorityclass low --value=5 --description=little'],
  ['auth can-i create pods'],
  ['auth can-i --list -n kind'],
  ...[
    'pods pod',
    'pods -n kind pod',
    'nodes machine',
    'sc',
    'vsclass',
    'vs -n kind',
    'vsc',
    'bsl -n kind',
    'pv volume',
    'pc high low',
    'daemonsets -n kind',
    'sa -n kind made',
    'secrets -n kind made secret',
    'cm -n kind made map',
    'datauploads -n kind',
    'volumeattachments',
    'ns kind',
  ].flatMap((what): [string][] => [[`get ${what}`], [`get ${what} -o wide`]]),
  ['get pods -n kind pod --show-labels'],
  ['get pods,secrets -n kind -o name'],
  ['get events -n kind --sort-by=.lastTimestamp --field-selector=involvedObject.name=pod'],
  ['get events -n kind -o wide --sort-by=.reason --field-selector=involvedObject.name=pod'],
  ['get datauploads -n kind -w --request-timeout=2s'],
  ['get datauploads -n kind -w --request-timeout=2s --output-watch-events'],
  ['get cm -n none'],
  ['get cm made -n none'],
  ['create configmap made -n none'],
  ['create configmap made -n kind'],
  ['delete namespace kube-system'],
  // A dry run changes no object.
  ['create namespace tried --dry-run=server'],
  ['get namespace tried'],
  ['delete cm made -n kind --dry-run=server'],
  ['patch cm made -n kind --dry-run=server -p {"data":{"a":"tried"}}'],
  ['label cm made -n kind --dry-run=server x=y'],
  ['get cm made -n kind -o jsonpath={.data}{.metadata.labels}'],
  [
    'patch cm made -n kind --type=json -p [{"op":"add","path":"/metadata/labels","value":{"x":"y"}},{"op":"add","path":"/metadata/labels/a~1b","value":"c"},{"op":"remove","path":"/data/a"}]',
  ],
  ['get cm made -n kind -o jsonpath={.data}{.metadata.labels}'],
  [
    'patch ds set -n kind -p {"spec":{"template":{"spec":{"containers":[{"name":"c","image":"new"},{"name":"d","image":"other"}]}}}}',
  ],
  [
    'get ds set -n kind -o jsonpath={.spec.template.spec.containers[*].name}{.spec.template.spec.containers[*].image}',
  ],
  ['patch datauploads upload -n kind -p {"spec":{"cancel":true}}'],
  ['patch datauploads upload -n kind --type=merge -p {"spec":{"cancel":true}}'],
  ['get secret secret -n kind -o jsonpath={.type}{.data}{.stringData}'],
  [
    'apply --server-side -f -',
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: metadata('applied', 'kind'),
      data: { a: 'b' },
    }),
  ],
  [
    'apply -f -',
    JSON.stringify({
      apiVersion: 'apps/v1',
      kind: 'DaemonSet',
      metadata: metadata('set', 'kind'),
      spec: { selector: { matchLabels: { app: 'set' } }, template: TEMPLATE },
    }),
  ],
  ['delete cm made -n kind'],
  ['delete cm made -n kind'],
  ['get --raw /healthz'],
  ['get nosuch'],
  ...[
    'pod.spec.volumes',
    'pvc.spec',
    'datauploads',
    'datauploads.spec.csiSnapshot',
    'vs.spec.source',
    'bsl.spec.config',
    'sc',
    'pod.spec.nosuch',
  ].map((what): [string] => [`explain ${what}`]),
];

describe.skipIf(!hasRealApi())('kubectl on the embedded API server', () => {
  let directory: string;
  let embedded: ApiServer;
  let real: RealApi;
  const servers: Server[] = [];
  beforeAll(async () => {
    directory = await fs.mkdtemp(join(tmpdir(), 'longshore-kubectl-'));
    embedded = await ApiServer.start();
    const kubeconfig = join(directory, 'kubeconfig');
    await fs.writeFile(kubeconfig, embedded.kubeconfig, { mode: 0o600 });
    real = await startRealApi(22_200);
    servers.push(
      { kubeconfig, home: join(directory, 'embedded') },
      { kubeconfig: real.kubeconfig, home: join(directory, 'real') },
    );
    for (const { home } of servers) await fs.mkdir(home);
  }, 180_000);
  afterAll(async () => {
    await embedded[Symbol.asyncDispose]();
    // The real API server may not have started.
    await (real as RealApi | undefined)?.[Symbol.asyncDispose]();
    await fs.rm(directory, { recursive: true, force: true });
  });

  it('explains kinds by what a real one says today', { timeout: 120_000 }, async () => {
    expect(checkedInSchemas()).toEqual(await realSchemas(real));
  });

  it('says what a real one says', { timeout: 300_000 }, async () => {
    const said = await Promise.all(
      servers.map(async (server) => {
        const lines: string[] = [];
        for (const [line, input] of FIRST) {
          const { out, error } = await kubectl(server, line, input);
          lines.push(`$ ${line}`, plain(withoutSystem(out)), plain(error));
        }
        return lines;
      }),
    );
    expect(said[0]).toEqual(said[1]);
  });
});
