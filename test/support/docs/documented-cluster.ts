import { execFile, execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { CreateBucketCommand, DeleteBucketCommand, S3Client } from '@aws-sdk/client-s3';
import { silentLogger } from '../../../src/base/index.ts';
import { DevCluster, SIMULATED_DRIVER, STAND_IN } from '../../../src/dev/index.ts';
import {
  type KubeClient,
  NODES,
  PVCS,
  PVS,
  STORAGE_CLASSES,
  VOLUME_SNAPSHOT_CLASSES,
  waitFor,
} from '../../../src/kube/index.ts';
import { tempDirectory } from '../kopia.ts';
import { BUCKET, type ObjectStore, startStore } from '../object-stores.ts';
import { packagedProgram, sharedPackage } from '../package.ts';
import { PEERS_DIR, type RealApi, startRealApi } from '../real-api.ts';
import { ShellSession } from './shell-session.ts';

const run = promisify(execFile);
const ROOT = new URL('../../../', import.meta.url).pathname;
const HERE = new URL('.', import.meta.url).pathname;
const NODE = 'node-1';
const ROOM = { cpu: '64', memory: '256Gi', pods: '1000' };
/** The simulated driver's StorageClass. */
const CLASS = 'dir';
const BOUND_MS = 300_000;
/** Offset of a free port. The cluster has fewer ports. */
const PAGE_PORT = 90;

/**
 * The cluster and the machine of the pages. etcd, API server, controllers, scheduler and object
 * store are real. Its one node runs pods as processes (`pod-program.sh`), with a simulated CSI
 * driver. A directory has the files of a checkout. Velero and Longshore are not installed.
 */
export class DocumentedCluster implements AsyncDisposable {
  /** The directory with the checkout's files, where commands run. */
  readonly directory: string;
  readonly env: NodeJS.ProcessEnv;
  readonly #parts: AsyncDisposableStack;
  readonly #api: RealApi;
  readonly #cluster: DevCluster;
  readonly store: ObjectStore;
  /** Text that a page shows in one place and uses in another. */
  noted = '';

  private constructor(
    parts: AsyncDisposableStack,
    { api, cluster, store }: { api: RealApi; cluster: DevCluster; store: ObjectStore },
    { directory, env }: { directory: string; env: NodeJS.ProcessEnv },
  ) {
    this.#parts = parts;
    this.#api = api;
    this.#cluster = cluster;
    this.store = store;
    this.directory = directory;
    this.env = env;
  }

  /** The credentials of the object store. */
  get credentials(): { readonly key: string; readonly secret: string } {
    const { AWS_ACCESS_KEY_ID: key = '', AWS_SECRET_ACCESS_KEY: secret = '' } =
      this.store.environment;
    return { key, secret };
  }

  get client(): KubeClient {
    return this.#api.client;
  }

  /** A free port of this machine, for the status page. */
  get pagePort(): number {
    return this.#api.portBase + PAGE_PORT;
  }

  static async start(portBase: number): Promise<DocumentedCluster> {
    await using parts = new AsyncDisposableStack();
    const scratch = tempDirectory('docs');
    parts.defer(() => fs.rmSync(scratch, { recursive: true, force: true }));
    parts.defer(() => {
      endProcessesOf(scratch);
    });
    const [api, store] = await Promise.all([
      startRealApi(portBase, { isBare: true }),
      startStore('minio'),
    ]);
    parts.use(api);
    parts.use(store);
    await makeBucket(store, BUCKET, { isThere: true });
    await makeBucket(store, 'velero');
    const directory = makeCheckout(join(scratch, 'checkout'));
    writeCredentials(directory, store);
    const env = environmentOf(scratch, { api, store });
    const cluster = new DevCluster({
      client: api.client,
      logger: silentLogger,
      directory: join(scratch, 'nodes'),
      namespace: 'velero',
      nodes: [NODE],
      command: [join(HERE, 'pod-program.sh')],
      environment: env as Record<string, string>,
      repositoryPassword: '',
      prepareRepository: undefined,
      withControllers: false,
    });
    const { port } = parts.use(await serveLogs(api, cluster));
    await addNode(api.client, port);
    const abort = new AbortController();
    const running = cluster.run(abort.signal);
    parts.defer(async () => {
      abort.abort();
      await running;
    });
    const owned = parts.move();
    return new DocumentedCluster(owned, { api, cluster, store }, { directory, env });
  }

  /** A new shell in the directory of the checkout. */
  shell(name: string): ShellSession {
    const directory = join(this.directory, '..', 'printed', name);
    return new ShellSession({ directory, cwd: this.directory, env: this.env });
  }

  /** Runs shell commands that are on no page. */
  async sh(script: string): Promise<string> {
    const options = { cwd: this.directory, env: this.env, maxBuffer: 64 << 20 };
    const { stdout } = await run('bash', ['--norc', '-euo', 'pipefail', '-c', script], options);
    return stdout;
  }

  makeBucket(name: string): Promise<void> {
    return makeBucket(this.store, name);
  }

  apply(...objects: object[]): Promise<string> {
    const file = join(this.directory, '..', 'objects.json');
    fs.writeFileSync(file, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }));
    return this.sh(`kubectl apply -f ${file}`);
  }

  /** The path of a PVC's data, once it is bound. */
  async volumeOf(namespace: string, name: string): Promise<string> {
    const volume = await waitFor(
      this.client,
      PVCS,
      { namespace, name },
      (claim) => (claim?.status?.phase === 'Bound' ? claim.spec.volumeName : undefined),
      { timeoutMs: BOUND_MS },
    );
    const { spec } = await this.client.get(PVS, { name: volume });
    return this.#cluster.csi.volumePath(spec.csi?.volumeHandle ?? '');
  }

  /**
   * The application of all pages: namespace `shop` with a StatefulSet `db`. Its volumes are `data`
   * with files, and the raw volume `disk` with an ext4. For the contents of the files, see
   * {@link readShop}.
   */
  async makeShop(): Promise<void> {
    const claim = (name: string, volumeMode: string): object => ({
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      metadata: { name, namespace: 'shop' },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: CLASS,
        volumeMode,
        resources: { requests: { storage: '8Mi' } },
      },
    });
    await this.apply(
      { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'shop' } },
      { ...CONFIG_MAP, metadata: { name: 'settings', namespace: 'shop' } },
      claim('data', 'Filesystem'),
      claim('disk', 'Block'),
      STATEFUL_SET,
    );
    const data = await this.volumeOf('shop', 'data');
    for (const [path, text] of Object.entries(FILES)) {
      fs.mkdirSync(join(data, path, '..'), { recursive: true });
      fs.writeFileSync(join(data, path), text);
    }
    const disk = await this.volumeOf('shop', 'disk');
    execFileSync('mke2fs', ['-q', '-F', '-t', 'ext4', '-d', data, disk]);
    await this.sh('kubectl -n shop rollout status statefulset/db --timeout=300s');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#parts[Symbol.asyncDispose]();
  }
}

/** Files of the volume `shop/data`, and of the ext4 on `shop/disk`. */
export const FILES: Readonly<Record<string, string>> = {
  'etc/hosts': '127.0.0.1 shop\n',
  'var/lib/orders.txt': 'two apples\none pear\n',
};

const CONFIG_MAP = { apiVersion: 'v1', kind: 'ConfigMap', data: { color: 'blue' } };
const LABELS = { app: 'db' };
const STATEFUL_SET = {
  apiVersion: 'apps/v1',
  kind: 'StatefulSet',
  metadata: { name: 'db', namespace: 'shop' },
  spec: {
    serviceName: 'db',
    replicas: 1,
    selector: { matchLabels: LABELS },
    template: {
      metadata: { labels: LABELS, annotations: { [STAND_IN]: 'true' } },
      spec: {
        terminationGracePeriodSeconds: 0,
        containers: [
          {
            name: 'db',
            image: 'registry.example.com/db:1',
            volumeMounts: [{ name: 'data', mountPath: '/data' }],
          },
        ],
        volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }],
      },
    },
  },
};

/** Makes a bucket with object lock. `isThere`: replaces an existing bucket. */
async function makeBucket(
  { endpoint, environment }: ObjectStore,
  name: string,
  { isThere = false } = {},
): Promise<void> {
  const client = new S3Client({
    endpoint,
    region: 'us-east-1',
    forcePathStyle: true,
    credentials: {
      accessKeyId: environment.AWS_ACCESS_KEY_ID ?? '',
      secretAccessKey: environment.AWS_SECRET_ACCESS_KEY ?? '',
    },
  });
  if (isThere) await client.send(new DeleteBucketCommand({ Bucket: name }));
  await client.send(new CreateBucketCommand({ Bucket: name, ObjectLockEnabledForBucket: true }));
  client.destroy();
}

function makeCheckout(directory: string): string {
  fs.mkdirSync(directory, { recursive: true });
  for (const name of ['manifests', 'crds', 'docs/examples']) {
    fs.cpSync(join(ROOT, name), join(directory, name), { recursive: true });
  }
  fs.mkdirSync(join(directory, 'bin'));
  fs.symlinkSync(packagedProgram(), join(directory, 'bin/longshore'));
  return directory;
}

/** Writes credentials in the format of the AWS CLI. */
function writeCredentials(directory: string, { environment }: ObjectStore): string {
  const { AWS_ACCESS_KEY_ID: key = '', AWS_SECRET_ACCESS_KEY: secret = '' } = environment;
  const file = join(directory, 'credentials');
  fs.mkdirSync(directory, { recursive: true });
  fs.writeFileSync(file, `[default]\naws_access_key_id=${key}\naws_secret_access_key=${secret}\n`);
  return file;
}

function environmentOf(
  scratch: string,
  { api, store }: { api: RealApi; store: ObjectStore },
): NodeJS.ProcessEnv {
  const home = join(scratch, 'home');
  fs.mkdirSync(home);
  const peers = join(PEERS_DIR, 'bin');
  const kopia = (name: string): string => join(home, 'kopia', name);
  const own = join(sharedPackage(), 'bin');
  return {
    HOME: home,
    PATH: [join(HERE, 'programs'), own, dirname(process.execPath), peers, process.env.PATH].join(
      ':',
    ),
    TMPDIR: scratch,
    KUBECONFIG: api.kubeconfig,
    // Edits as a user would: removes the flag that a page tells to remove.
    KUBE_EDITOR: `sed -i /--disable-controllers=backup-repo/d`,
    // Replaces the endpoint for tools that derive it from the region.
    AWS_ENDPOINT_URL_S3: store.endpoint,
    AWS_EC2_METADATA_DISABLED: 'true',
    AWS_SHARED_CREDENTIALS_FILE: writeCredentials(join(home, '.aws'), store),
    KOPIA_CONFIG_PATH: kopia('config'),
    KOPIA_CACHE_DIRECTORY: kopia('cache'),
    KOPIA_LOG_DIR: kopia('log'),
    KOPIA_CHECK_FOR_UPDATES: 'false',
    DOCS_FOLDER: scratch,
    DOCS_PEERS: peers,
    DOCS_CHECKOUT: ROOT,
    DOCS_LONGSHORE: packagedProgram(),
    DOCS_PLUGIN: join(sharedPackage(), 'dist/velero-plugin-longshore'),
  };
}

/** Serves `kubectl logs` like a kubelet: the API server calls it. */
async function serveLogs(
  { directory }: RealApi,
  cluster: DevCluster,
): Promise<AsyncDisposable & { readonly port: number }> {
  const file = (name: string): Buffer => fs.readFileSync(join(directory, 'certs', name));
  const credentials = { cert: file('apiserver.crt'), key: file('apiserver.key') };
  const server = createServer(credentials, ({ url = '' }, response) => {
    const [, name = ''] = /^\/containerLogs\/[^/]+\/([^/]+)\//.exec(url) ?? [];
    const log = cluster.podLog(name);
    response.statusCode = log === undefined ? 404 : 200;
    response.end(log ?? 'no such pod');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    port: (server.address() as AddressInfo).port,
    [Symbol.asyncDispose]: () =>
      new Promise<void>((resolve) => {
        server.closeAllConnections();
        server.close(() => resolve());
      }),
  };
}

async function addNode(client: KubeClient, logsPort: number): Promise<void> {
  const labels = { 'kubernetes.io/os': 'linux', 'kubernetes.io/hostname': NODE };
  await client.create(NODES, { metadata: { name: NODE, labels } });
  await client.patch(NODES, { name: NODE }, { spec: { taints: null } });
  const status = {
    capacity: ROOM,
    allocatable: ROOM,
    conditions: [{ type: 'Ready', status: 'True', reason: 'Simulated' }],
    addresses: [{ type: 'InternalIP', address: '127.0.0.1' }],
    daemonEndpoints: { kubeletEndpoint: { Port: logsPort } },
  };
  await client.patch(NODES, { name: NODE }, { status }, { subresource: 'status' });
  const isDefault = 'storageclass.kubernetes.io/is-default-class';
  await client.create(STORAGE_CLASSES, {
    metadata: { name: CLASS, annotations: { [isDefault]: 'true' } },
    provisioner: SIMULATED_DRIVER,
    volumeBindingMode: 'Immediate',
    reclaimPolicy: 'Delete',
  });
  await client.create(VOLUME_SNAPSHOT_CLASSES, {
    metadata: { name: `${CLASS}-snap`, labels: { 'velero.io/csi-volumesnapshot-class': 'true' } },
    driver: SIMULATED_DRIVER,
    deletionPolicy: 'Delete',
  });
}

/** Ends processes of killed pods: those with a file of this folder in their command line. */
function endProcessesOf(folder: string): void {
  for (const pid of fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const isOfFolder = fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(`${folder}/`);
      if (isOfFolder) process.kill(Number(pid), 'SIGKILL');
    } catch {
      // The process has ended meanwhile.
    }
  }
}
