import { execFile, spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { homedir, tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { connectToCluster, type KubeClient, PODS } from '../../src/kube/index.ts';
import { OwnServer } from './own-server.ts';
import { sharedPackage } from './package.ts';
import { auditPolicy } from './real-api.ts';
import { type S3Log, startS3Log } from './s3-log.ts';

const run = promisify(execFile);
const PEERS_DIR =
  process.env.PEERS_DIR ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), '.peers');
const ROOT = new URL('../../', import.meta.url).pathname;
const SCRIPT = join(ROOT, 'test/peers/cluster.sh');
const STACK = join(ROOT, 'test/peers/stack.sh');
const NEEDED = [
  ...['etcd', 'kube-apiserver', 'kube-controller-manager', 'kube-scheduler', 'kubectl', 'kubelet'],
  ...['containerd', 'csidir', 'csi-provisioner', 'csi-snapshotter', 'snapshot-controller'],
  ...['minio', 'velero', 'velero-restore-helper', 'velero-plugin-for-aws', 'kopia', 'pause', 'fwd'],
];
const BUFFER_BYTES = 64 << 20;
/** The name of the image that stands for ours. */
const IMAGE = 'localhost/longshore:1';

/** Whether the binaries and root rights exist. With REQUIRE_PEERS=1, they must. */
export function hasRealNode(): boolean {
  const missing = NEEDED.filter((name) => !existsSync(join(PEERS_DIR, 'bin', name)));
  if (process.getuid?.() !== 0) missing.push('root');
  if (!existsSync('/usr/sbin/runc')) missing.push('runc (install.sh apt)');
  if (missing.length === 0) return true;
  if (process.env.REQUIRE_PEERS === '1') {
    throw new Error(`peers are missing: ${missing.join(', ')}; run test/peers/install.sh`);
  }
  return false;
}

export interface ProcessOfPod {
  readonly pid: number;
  /** Its words, separated by spaces. */
  readonly command: string;
}

/**
 * Processes of pods on this machine whose command matches. `cgroup`: only those below this control
 * group, which belongs to the pods of one node.
 */
export function processesOf(command: RegExp, cgroup = ''): ProcessOfPod[] {
  return readdirSync('/proc').flatMap((name) => {
    if (!/^\d+$/.test(name)) return [];
    try {
      const text = readFileSync(`/proc/${name}/cmdline`, 'utf8').replaceAll('\0', ' ');
      if (!command.test(text)) return [];
      const isOfNode = readFileSync(`/proc/${name}/cgroup`, 'utf8').includes(`:${cgroup}/`);
      return isOfNode ? [{ pid: Number(name), command: text }] : [];
    } catch {
      // The process has just ended.
      return [];
    }
  });
}

export type Overlay = 'beside-velero' | 'instead-of-velero';
export type Agent = 'longshore' | 'velero';

export interface VolumeOfPod {
  readonly pod: string;
  readonly volume: string;
  /** The volume's data on this machine. */
  readonly path: string;
}

/**
 * A whole node with kubelet, containerd, the CSI stack, S3 and the real Velero. Our image is there,
 * and our manifests are not.
 */
export class RealNode implements AsyncDisposable {
  readonly directory: string;
  readonly client: KubeClient;
  readonly #env: NodeJS.ProcessEnv;
  readonly #cgroup: string;
  readonly #s3: { readonly host: string; readonly port: number };
  /** The DaemonSet `node-agent` of Velero's installer, as JSON. */
  #veleroDaemonSet: string | undefined;

  private constructor(directory: string, portBase: number, env: NodeJS.ProcessEnv) {
    this.directory = directory;
    this.#env = env;
    // The name in cluster.sh.
    this.#cgroup = `/peers-${portBase}`;
    // The port in stack.sh.
    this.#s3 = { host: env.S3_ADDR ?? '', port: portBase + 3 };
    const kubeconfig = join(directory, 'kubeconfig');
    this.client = connectToCluster({ kubeconfig, userAgent: 'longshore-test/1' });
  }

  /** `isAudited`: records requests of the ServiceAccounts in Velero's namespace in `audit.log`. */
  static async start(portBase: number, { isAudited = false } = {}): Promise<RealNode> {
    const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-node-'));
    const policy = join(directory, 'audit-policy.json');
    if (isAudited) await fs.writeFile(policy, auditPolicy('velero'));
    const auditFlags = `--audit-policy-file=${policy} --audit-log-path=${join(directory, 'audit.log')}`;
    const env = {
      ...process.env,
      PEERS_DIR,
      PORT_BASE: String(portBase),
      // The script sets the same for its parts.
      S3_ADDR: `10.${Math.floor(portBase / 256) + 64}.${portBase % 256}.1`,
      SERVICE_CIDR: `10.${Math.floor(portBase / 256) + 64}.${portBase % 256}.0/24`,
      KUBECONFIG: join(directory, 'kubeconfig'),
      PATH: `${join(PEERS_DIR, 'bin')}:${process.env.PATH ?? ''}`,
      HOME: directory,
      ...(isAudited && { API_MORE_FLAGS: auditFlags }),
    };
    try {
      await run(SCRIPT, ['up', directory, 'csi', 'velero', 'longshore'], { env });
    } catch (error) {
      await run(SCRIPT, ['down', directory], { env }).catch(() => undefined);
      throw error;
    }
    return new RealNode(directory, portBase, env);
  }

  /** Kills a part like a kernel that is short of memory, and restarts it two seconds later. */
  async crash(part: 'kubelet' | 'containerd'): Promise<void> {
    const file = join(this.directory, `${part}.pid`);
    process.kill(Number(await fs.readFile(file, 'utf8')), 'SIGKILL');
    await fs.rm(file);
    await new Promise((resume) => setTimeout(resume, 2000));
    await run(SCRIPT, ['up', this.directory], { env: this.#env });
  }

  /**
   * Replaces the cluster: ends the node and starts it with a new etcd and kubelet folder. The
   * storage (csidir, the bucket) keeps the data of the first cluster. Velero's server starts from
   * scratch.
   */
  async replaceCluster(): Promise<void> {
    await run(SCRIPT, ['down', this.directory], { env: this.#env });
    for (const name of ['etcd', 'install.done', 'kubelet', 'kubelet-certs', 'home', 'plugins'])
      await fs.rm(join(this.directory, name), { recursive: true, force: true });
    await run(SCRIPT, ['up', this.directory, 'csi', 'velero'], { env: this.#env });
  }

  /** Processes of its pods, and not those of another node on this machine. */
  processesOf(command: RegExp): ProcessOfPod[] {
    return processesOf(command, this.#cgroup);
  }

  /** From now on the pod of this process cannot reach the API server. Storage and kubelet work. */
  async cutOff(pid: number): Promise<void> {
    const rule = ['iptables', '-A', 'OUTPUT', '-p', 'tcp', '--dport', '443', '-j', 'DROP'];
    await run('nsenter', ['--target', String(pid), '--net', ...rule], { env: this.#env });
  }

  async kubectl(...parameters: string[]): Promise<string> {
    const options = { env: this.#env, maxBuffer: BUFFER_BYTES };
    return (await run('kubectl', parameters, options)).stdout;
  }

  async velero(...parameters: string[]): Promise<string> {
    const options = { env: this.#env, maxBuffer: BUFFER_BYTES };
    return (await run(join(PEERS_DIR, 'bin/velero'), parameters, options)).stdout;
  }

  /** Our program, as a user runs it. */
  async longshore(...parameters: string[]): Promise<string> {
    const program = join(sharedPackage(), 'bin/longshore');
    return (await run(program, parameters, { env: this.#env })).stdout;
  }

  async apply(yaml: string): Promise<void> {
    const child = spawn('kubectl', ['apply', '-f', '-'], {
      env: this.#env,
      stdio: ['pipe', 'ignore', 'pipe'],
    });
    let errors = '';
    child.stderr.on('data', (part: Buffer) => (errors += part.toString()));
    child.stdin.end(yaml);
    const code = await new Promise((resolve) => child.on('close', resolve));
    if (code !== 0) throw new Error(`kubectl apply: ${errors}`);
  }

  /** A new namespace has no ServiceAccount for a moment, and refuses pods. */
  async applyPatiently(yaml: string): Promise<void> {
    for (let attempt = 0; ; attempt++) {
      try {
        await this.apply(yaml);
        return;
      } catch (error) {
        if (attempt === 20) throw error;
        await new Promise((resume) => setTimeout(resume, 300));
      }
    }
  }

  /** Applies our manifests as a user would, with another image name and the test's flags. */
  async applyOverlay(overlay: Overlay, flags: readonly string[] = []): Promise<void> {
    const yaml = await this.kubectl('kustomize', join(ROOT, 'manifests', overlay));
    const more = flags.map((flag) => `\n        - ${flag}`).join('');
    await this.apply(
      yaml
        .replace(/image: longshore$/m, `image: ${IMAGE}`)
        .replace('/var/lib/kubelet/pods', join(this.directory, 'kubelet/pods'))
        .replace(/(args:\n\s+- node-agent\n\s+- server)/, `$1${more}`),
    );
    const name = overlay === 'beside-velero' ? 'longshore-node-agent' : 'node-agent';
    await this.kubectl('-n', 'velero', 'rollout', 'status', `ds/${name}`, '--timeout=60s');
  }

  /** Replaces the DaemonSet `node-agent`, with the test's flags. Waits for the old pods' end. */
  async useAgent(agent: Agent, flags: readonly string[] = []): Promise<void> {
    const daemonSet = ['-n', 'velero', 'ds', 'node-agent'];
    this.#veleroDaemonSet ??= await this.kubectl('get', ...daemonSet, '-o', 'json');
    await this.kubectl('delete', ...daemonSet, '--cascade=foreground', '--timeout=60s');
    if (agent === 'longshore') return this.applyOverlay('instead-of-velero', flags);
    const { apiVersion, kind, metadata, spec } = JSON.parse(this.#veleroDaemonSet) as {
      apiVersion: string;
      kind: string;
      metadata: Record<string, unknown>;
      spec: { template: { spec: { containers: { args: string[] }[] } } };
    };
    const { name, namespace, labels } = metadata;
    for (const { args } of spec.template.spec.containers) args.push(...flags);
    await this.apply(
      JSON.stringify({ apiVersion, kind, metadata: { name, namespace, labels }, spec }),
    );
    await this.kubectl('-n', 'velero', 'rollout', 'status', 'ds/node-agent', '--timeout=60s');
  }

  /** Replaces Velero's definition by ours, for a kind that only servers use. */
  async applyServerDefinition(name: string): Promise<void> {
    await this.apply(await fs.readFile(join(ROOT, 'crds/server', `${name}.yaml`), 'utf8'));
  }

  /** Applies our server's manifests like a user, with another image. Waits until it is ready. */
  async applyServer(): Promise<void> {
    const yaml = await this.kubectl('kustomize', join(ROOT, 'manifests/server'));
    await this.apply(yaml.replace(/image: longshore$/m, `image: ${IMAGE}`));
    await this.scaleServer(1);
  }

  async scaleServer(replicas: 0 | 1): Promise<void> {
    const deployment = ['-n', 'velero', 'deploy/longshore-server'];
    await this.kubectl('scale', ...deployment, `--replicas=${replicas}`);
    await this.kubectl('rollout', 'status', ...deployment, '--timeout=120s');
    if (replicas === 1) return;
    const pods = ['pod', '-l', 'name=longshore-server', '--timeout=60s'];
    await this.kubectl('-n', 'velero', 'wait', '--for=delete', ...pods);
  }

  /**
   * Restarts Velero's server with the given feature flags and other flags, and with our plugin in
   * its plugin folder or without.
   */
  async restartVelero({
    features = 'EnableCSI',
    flags = [],
    hasPlugin = false,
  }: { features?: string; flags?: readonly string[]; hasPlugin?: boolean } = {}): Promise<void> {
    const more = { VELERO_FEATURES: features, VELERO_SERVER_FLAGS: flags.join(' ') };
    const env = { ...this.#env, ...more, REAL_NODE_AGENT: '1' };
    await run(STACK, ['down', this.directory, 'velero'], { env });
    const made = join(this.directory, 'longshore-plugin/plugins');
    const folder = join(this.directory, 'plugins');
    if (hasPlugin) {
      // Like the plugin's init container, with the server's plugin folder as its volume.
      await run(join(made, 'velero-plugin-longshore'), ['install', folder], { env: {} });
    } else {
      await fs.rm(join(folder, 'velero-plugin-longshore'), { force: true });
      await fs.rm(join(folder, 'longshore'), { recursive: true, force: true });
    }
    await run(STACK, ['up', this.directory, 'velero'], { env });
  }

  /** Starts a proxy that records changes in S3, for pods as well. The caller closes it. */
  logS3(): Promise<S3Log> {
    const { host, port } = this.#s3;
    return startS3Log(`http://${host}:${port}`, { host, port: port + 2 });
  }

  /** Stops Velero's server. Backups and restores wait for a server. */
  async stopVelero(): Promise<void> {
    await run(STACK, ['down', this.directory, 'velero'], { env: this.#env });
  }

  /**
   * Starts our server as a process beside the cluster, with Velero's plugin folder and without a
   * Velero server. Its log is `own-server.log`.
   */
  async startOwnServer(flags: readonly string[] = []): Promise<OwnServer> {
    const home = join(this.directory, 'own-home');
    await fs.mkdir(home, { recursive: true });
    const kubeconfig = await this.#ownServerRights(join(home, 'kubeconfig'));
    return OwnServer.start({
      program: join(sharedPackage(), 'bin/longshore'),
      parameters: [
        ...['server', '--namespace', 'velero', '--features', 'EnableCSI'],
        ...['--kubeconfig', kubeconfig],
        ...['--plugin-dir', join(this.directory, 'plugins'), '--metrics-address', '127.0.0.1:0'],
        ...['--item-operation-sync-frequency', '2s', '--store-validation-frequency', '10s'],
        ...flags,
      ],
      env: { ...this.#env, KUBECONFIG: '', HOME: home, TMPDIR: home, VELERO_NAMESPACE: 'velero' },
      log: join(this.directory, 'own-server.log'),
    });
  }

  /** Applies our ServiceAccount without a pod, so that the server has a user's rights. */
  async #ownServerRights(file: string): Promise<string> {
    const yaml = await this.kubectl('kustomize', join(ROOT, 'manifests/server-for-backups'));
    // Pods that wait for their volumes get its image.
    const named = yaml.replace(/image: longshore$/m, `image: ${IMAGE}`);
    await this.apply(named.replace(/replicas: 2$/m, 'replicas: 0'));
    const token = await this.kubectl('-n', 'velero', 'create', 'token', 'longshore-server');
    const text = await this.kubectl('config', 'view', '--raw', '--minify', '-o', 'json');
    const users = [{ name: 'u', user: { token: token.trim() } }];
    await fs.writeFile(file, JSON.stringify({ ...(JSON.parse(text) as object), users }), {
      mode: 0o600,
    });
    return file;
  }

  /** The log of all runs of Velero's server. */
  veleroLog(): Promise<string> {
    return fs.readFile(join(this.directory, 'velero.log'), 'utf8');
  }

  /** The data volumes of all pods in a namespace: of csidir, or directories of the pods. */
  async volumesOfPods(namespace: string): Promise<VolumeOfPod[]> {
    const pods = await this.client.list(PODS, { namespace });
    return Promise.all(
      pods.flatMap(({ metadata: { name: pod, uid }, spec }) =>
        (spec.volumes ?? [])
          .filter((volume) => volume.projected === undefined)
          .map(async ({ name: volume, ephemeral, persistentVolumeClaim }) => {
            const claim = ephemeral ? `${pod}-${volume}` : persistentVolumeClaim?.claimName;
            const own = `kubelet/pods/${uid}/volumes/kubernetes.io~empty-dir/${volume}`;
            const path =
              claim === undefined
                ? join(this.directory, own)
                : await this.volumePath(namespace, claim);
            return { pod, volume, path };
          }),
      ),
    );
  }

  /** The data of a csidir volume on this machine. */
  async volumePath(namespace: string, pvc: string): Promise<string> {
    const name = await this.kubectl(
      '-n',
      namespace,
      'get',
      'pvc',
      pvc,
      '-o',
      'jsonpath={.spec.volumeName}',
    );
    return join(this.directory, 'csidir/volumes', name);
  }

  /** Handles of the snapshots in the storage. */
  storedSnapshots(): string[] {
    return readdirSync(join(this.directory, 'csidir/snapshots'));
  }

  /** Runs Kopia with the repository of a namespace. */
  async kopia(namespace: string, ...parameters: string[]): Promise<string> {
    const folder = join(this.directory, `kopia-${namespace}`);
    const env = {
      ...this.#env,
      KOPIA_PASSWORD: 'static-passw0rd',
      KOPIA_CHECK_FOR_UPDATES: 'false',
      KOPIA_CONFIG_PATH: join(folder, 'config'),
      KOPIA_CACHE_DIRECTORY: join(folder, 'cache'),
      KOPIA_LOG_DIR: join(folder, 'log'),
    };
    const options = { env, maxBuffer: BUFFER_BYTES };
    const kopia = join(PEERS_DIR, 'bin/kopia');
    if (!existsSync(join(folder, 'config'))) {
      await fs.mkdir(folder, { recursive: true });
      const location = JSON.parse(
        await this.kubectl('-n', 'velero', 'get', 'bsl', 'default', '-o', 'json'),
      ) as { spec: { config: { s3Url: string } } };
      const flags = [
        ...['--bucket', 'velero', '--prefix', `kopia/${namespace}/`, '--disable-tls'],
        ...['--endpoint', location.spec.config.s3Url.replace('http://', '')],
        ...['--access-key', 'peersaccess', '--secret-access-key', 'peerssecret'],
        ...['--override-username', 'default', '--override-hostname', 'default'],
      ];
      await run(kopia, ['repository', 'connect', 's3', ...flags], options);
    }
    return (await run(kopia, parameters, options)).stdout;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.client.close();
    await run(SCRIPT, ['down', this.directory], { env: this.#env });
    if (process.env.KEEP_NODE !== '1') {
      await fs.rm(this.directory, { recursive: true, force: true });
    }
  }
}

/** An application: its namespace, its claims, and a pod with annotations that mounts them. */
export function application(
  namespace: string,
  claims: readonly { name: string; block?: boolean; storage?: string; storageClass?: string }[],
  { annotations = {} }: { annotations?: Readonly<Record<string, string>> } = {},
): string {
  const documents: object[] = [
    { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } },
    ...claims.map(({ name, block, storage = '64Mi', storageClass = 'dir' }) => ({
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      metadata: { name, namespace },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: storageClass,
        ...(block === true && { volumeMode: 'Block' }),
        resources: { requests: { storage } },
      },
    })),
    {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'writer', namespace, annotations },
      spec: {
        restartPolicy: 'Never',
        terminationGracePeriodSeconds: 0,
        containers: [
          {
            name: 'c',
            image: 'localhost/busybox:1',
            imagePullPolicy: 'Never',
            command: ['sleep', '36000'],
            volumeMounts: claims
              .filter(({ block }) => block !== true)
              .map(({ name }) => ({ name, mountPath: `/${name}` })),
            volumeDevices: claims
              .filter(({ block }) => block === true)
              .map(({ name }) => ({ name, devicePath: `/dev/${name}` })),
          },
        ],
        volumes: claims.map(({ name }) => ({ name, persistentVolumeClaim: { claimName: name } })),
      },
    },
  ];
  return documents.map((document) => JSON.stringify(document)).join('\n---\n');
}

/** A usual application: a Deployment with its ConfigMap and its claims. */
export function deployment(
  namespace: string,
  claims: readonly { name: string; block?: boolean; storage?: string }[],
): string {
  const [space, ...rest] = application(namespace, claims)
    .split('\n---\n')
    .map((document) => JSON.parse(document) as Record<string, unknown>);
  const pod = rest.pop() as { spec: Record<string, unknown> };
  const labels = { app: 'app' };
  const spec: Record<string, unknown> = { ...pod.spec };
  // Not allowed in a Deployment's pods.
  delete spec.restartPolicy;
  const documents = [
    space,
    ...rest,
    {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { name: 'settings', namespace },
      data: { colour: 'blue' },
    },
    {
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata: { name: 'app', namespace },
      spec: {
        strategy: { type: 'Recreate' },
        selector: { matchLabels: labels },
        template: { metadata: { labels }, spec },
      },
    },
  ];
  return documents.map((document) => JSON.stringify(document)).join('\n---\n');
}

/**
 * Applications with volumes of each kind: a StatefulSet, and a Deployment that mounts a part of its
 * volume. `withEphemeral`: adds a generic ephemeral volume, which Velero's own node-agent does not
 * find.
 */
export function applicationOfVolumes(namespace: string, { withEphemeral = false } = {}): string {
  const template = (app: string, mounts: object[], volumes: object[]): object => ({
    metadata: { labels: { app } },
    spec: {
      terminationGracePeriodSeconds: 0,
      automountServiceAccountToken: false,
      containers: [
        {
          name: 'c',
          image: 'localhost/busybox:1',
          imagePullPolicy: 'Never',
          command: ['sleep', '36000'],
          volumeMounts: mounts,
        },
      ],
      volumes,
    },
  });
  const claim = {
    accessModes: ['ReadWriteOnce'],
    storageClassName: 'dir',
    resources: { requests: { storage: '64Mi' } },
  };
  const selector = (app: string): object => ({ matchLabels: { app } });
  const documents = [
    { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } },
    {
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      metadata: { name: 'shared', namespace },
      spec: claim,
    },
    {
      apiVersion: 'apps/v1',
      kind: 'StatefulSet',
      metadata: { name: 'db', namespace },
      spec: {
        serviceName: 'db',
        selector: selector('db'),
        template: template(
          'db',
          [
            { name: 'data', mountPath: '/data' },
            { name: 'cache', mountPath: '/cache' },
          ],
          [{ name: 'cache', emptyDir: {} }],
        ),
        volumeClaimTemplates: [{ metadata: { name: 'data' }, spec: claim }],
      },
    },
    {
      apiVersion: 'apps/v1',
      kind: 'Deployment',
      metadata: { name: 'web', namespace },
      spec: {
        strategy: { type: 'Recreate' },
        selector: selector('web'),
        template: template(
          'web',
          [
            { name: 'shared', mountPath: '/shared', subPath: 'below' },
            { name: 'scratch', mountPath: '/scratch' },
          ],
          [
            { name: 'shared', persistentVolumeClaim: { claimName: 'shared' } },
            withEphemeral
              ? { name: 'scratch', ephemeral: { volumeClaimTemplate: { spec: claim } } }
              : { name: 'scratch', emptyDir: {} },
          ],
        ),
      },
    },
  ];
  return documents.map((document) => JSON.stringify(document)).join('\n---\n');
}
