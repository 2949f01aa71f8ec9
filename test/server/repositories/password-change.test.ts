import { spawnSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import {
  CodedError,
  codeOf,
  isCode,
  mapLimited,
  messageOf,
  Secret,
  silentLogger,
  systemClock,
} from '../../../src/base/index.ts';
import { signingKey, WELL_KNOWN_PASSWORD } from '../../../src/archive/index.ts';
import { type BlobStorage, openStorage } from '../../../src/blob/index.ts';
import { ForwardingStorage } from '../../../src/blob/wrappers/forwarding.ts';
import { writeOnce } from '../../../src/blob/wrappers/write-once.ts';
import { runCommandLine } from '../../../src/cli/run.ts';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  ARCHIVE_KEYS_SECRET,
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  connectToCluster,
  DATA_UPLOADS,
  type KubeClient,
  keyOf,
  type Lease,
  NAMESPACES,
  type ObjectRef,
  POD_VOLUME_BACKUPS,
  SECRETS,
} from '../../../src/kube/index.ts';
import { createFormat, loadFormat } from '../../../src/repository/index.ts';
import {
  ARCHIVE_KEYS,
  EARLIER_SIGNING_KEYS,
  PASSWORD_KEY,
  ensureBackupRepository,
  loadRepositoryAccess,
  repositoryLabels,
  repositoryPasswords,
} from '../../../src/repository-access/index.ts';
import {
  type ChangeAllOptions,
  type ChangeAllReport,
  changeAllPasswords,
} from '../../../src/server/index.ts';
import { HOLD } from '../../../src/server/repositories/password-change/repository-lock.ts';
import { hasKopia, Kopia, tempDirectory } from '../../support/kopia.ts';
import { ofKind, parseManifests } from '../../support/manifests.ts';
import { hasRealApi, type RealApi, startRealApi } from '../../support/real-api.ts';
import { DEFAULT_FORMAT } from '../../support/repositories.ts';

const OLD = 'static-passw0rd';
const NEW = 'the next one';
/** A key that an earlier version of Longshore kept beside the password. */
const EARLIER_KEY = 'ab'.repeat(32);
const encoded = (text: string): string => Buffer.from(text).toString('base64');
const SECRET = 'velero-repo-credentials';
const NEXT = 'longshore-next-password';
const PREVIOUS = 'longshore-previous-password';
const APPS = ['app', 'shop'];
const signal = new AbortController().signal;
const work = tempDirectory('all-passwords');
/** A bucket with the repositories of two namespaces. */
const template = join(work, 'template');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

interface Server extends AsyncDisposable {
  readonly kubeconfig: string;
}

async function startEmbedded(): Promise<Server> {
  const server = await ApiServer.start();
  const kubeconfig = join(work, 'kubeconfig');
  fs.writeFileSync(kubeconfig, server.kubeconfig, { mode: 0o600 });
  return { kubeconfig, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

/** Simulates a kill: the process loses the write at the kill, or only the later ones. */
class Kill {
  writes = 0;
  readonly #at: number;
  readonly #isAfter: boolean;

  constructor(at = Infinity, isAfter = false) {
    this.#at = at;
    this.#isAfter = isAfter;
  }

  get isDead(): boolean {
    return this.writes > this.#at;
  }

  async write<T>(task: () => Promise<T>): Promise<T> {
    this.writes++;
    if (this.writes < this.#at) return task();
    const isTheOne = this.writes === this.#at;
    this.writes = Math.max(this.writes, this.#at + 1);
    if (isTheOne && this.#isAfter) await task();
    throw new Error('killed');
  }

  async read<T>(task: () => Promise<T>): Promise<T> {
    if (this.isDead) throw new Error('killed');
    return task();
  }
}

const WORLDS_AT_ONCE = 4;

/** Each `step`th write of a whole run, from `first` on. */
const pointsOf = ({ writes }: Kill, first: number, step: number): number[] =>
  Array.from({ length: Math.floor((writes - first) / step) + 1 }, (_, i) => first + i * step);

class MortalStorage extends ForwardingStorage {
  readonly #kill: Kill;

  constructor(inner: BlobStorage, kill: Kill) {
    super(inner);
    this.#kill = kill;
  }

  override putBlob(...parameters: Parameters<BlobStorage['putBlob']>): Promise<void> {
    return this.#kill.write(() => this.inner.putBlob(...parameters));
  }

  override deleteBlob(...parameters: Parameters<BlobStorage['deleteBlob']>): Promise<void> {
    return this.#kill.write(() => this.inner.deleteBlob(...parameters));
  }

  override getBlob(...parameters: Parameters<BlobStorage['getBlob']>): Promise<Uint8Array> {
    return this.#kill.read(() => this.inner.getBlob(...parameters));
  }
}

/** For an API server without Leases. */
class Leases {
  readonly #held = new Map<string, Lease>();

  readonly find = (ref: ObjectRef): Promise<Lease | undefined> =>
    Promise.resolve(structuredClone(this.#held.get(keyOf(ref))));

  readonly create = (lease: Lease): Promise<Lease> => {
    if (this.#held.has(keyOf(lease.metadata))) {
      return Promise.reject(new CodedError('KUBE_ALREADY_EXISTS', 'there is one'));
    }
    return this.#put(lease, '0');
  };

  readonly replace = (lease: Lease): Promise<Lease> => {
    const before = this.#held.get(keyOf(lease.metadata))?.metadata.resourceVersion ?? '';
    if (before !== lease.metadata.resourceVersion) {
      return Promise.reject(new CodedError('KUBE_CONFLICT', 'written meanwhile'));
    }
    return this.#put(lease, before);
  };

  #put(lease: Lease, before: string): Promise<Lease> {
    const metadata = { ...lease.metadata, resourceVersion: String(Number(before) + 1) };
    this.#held.set(keyOf(metadata), { ...lease, metadata });
    return Promise.resolve({ ...lease, metadata });
  }
}

function mortalClient(client: KubeClient, kill: Kill, leases?: Leases): KubeClient {
  return new Proxy(client, {
    get(target, name) {
      const value = Reflect.get(target, name, target) as unknown;
      if (typeof value !== 'function') return value;
      const isLease = (first: unknown): boolean => (first as { kind?: string }).kind === 'Lease';
      const call = (...parameters: unknown[]): unknown => {
        if (!leases || !isLease(parameters[0])) return Reflect.apply(value, target, parameters);
        return leases[name as 'find' | 'create' | 'replace'](parameters[1] as never);
      };
      if (['create', 'replace', 'patch', 'delete'].includes(String(name))) {
        return (...parameters: unknown[]) => {
          // Lease calls do not count: a run has any number of renewals.
          if (isLease(parameters[0])) {
            return kill.read(() => call(...parameters) as Promise<unknown>);
          }
          return kill.write(() => call(...parameters) as Promise<unknown>);
        };
      }
      if (['get', 'find', 'list'].includes(String(name))) {
        return (...parameters: unknown[]) =>
          kill.read(() => call(...parameters) as Promise<unknown>);
      }
      return call;
    },
  });
}

/** The rights of the Job of manifests/change-password, which users of the command need, too. */
const RIGHTS = ofKind(
  parseManifests(
    fs.readFileSync(
      new URL('../../../manifests/change-password/rbac.yaml', import.meta.url),
      'utf8',
    ),
  ),
  'Role',
).flatMap(({ rules = [] }) => rules);

/** A kubeconfig with these rights and no others. */
async function kubeconfigWith(
  api: RealApi,
  namespace: string,
  rules: typeof RIGHTS,
): Promise<string> {
  const { directory } = api;
  const kubectl = (...parameters: string[]): Promise<string> => api.kubectl(...parameters);
  const metadata = { name: 'changer', namespace };
  const group = 'rbac.authorization.k8s.io';
  const objects = [
    { apiVersion: 'v1', kind: 'ServiceAccount', metadata },
    { apiVersion: `${group}/v1`, kind: 'Role', metadata, rules },
    {
      apiVersion: `${group}/v1`,
      kind: 'RoleBinding',
      metadata,
      roleRef: { apiGroup: group, kind: 'Role', name: 'changer' },
      subjects: [{ kind: 'ServiceAccount', name: 'changer', namespace }],
    },
  ];
  const file = join(directory, `${namespace}-rights.yaml`);
  fs.writeFileSync(file, objects.map((object) => JSON.stringify(object)).join('\n---\n'));
  await kubectl('apply', '-f', file);
  const token = (await kubectl('-n', namespace, 'create', 'token', 'changer')).trim();
  const view = await kubectl('config', 'view', '--raw', '--minify', '-o', 'json');
  const users = [{ name: 'u', user: { token } }];
  const admin = JSON.parse(view) as { contexts: { name: string; context: object }[] };
  const contexts = admin.contexts.map(({ name, context }) => ({
    name,
    context: { ...context, user: 'u' },
  }));
  const path = join(directory, `${namespace}.kubeconfig`);
  fs.writeFileSync(path, JSON.stringify({ ...admin, users, contexts }), { mode: 0o600 });
  return path;
}

const SERVERS = [
  ['the embedded API server', startEmbedded, true, new Leases()],
  ['a real API server', () => startRealApi(21_900), hasRealApi(), undefined],
] as const;

for (const [serverName, start, isThere, leases] of SERVERS)
  describe.skipIf(!isThere)(`the password of all repositories, on ${serverName}`, () => {
    let server: Server;
    let client: KubeClient;
    let worlds = 0;
    beforeAll(async () => {
      server = await start();
      client = connectToCluster({ kubeconfig: server.kubeconfig, userAgent: 'passwords/1' });
      if (fs.existsSync(template)) return;
      for (const app of APPS) {
        const path = join(template, 'kopia', app);
        fs.mkdirSync(path, { recursive: true });
        await using storage = await openStorage(`file://${path}/`);
        await createFormat(storage, new Secret(OLD), DEFAULT_FORMAT);
      }
    }, 120_000);
    afterAll(async () => {
      client.close();
      await server[Symbol.asyncDispose]();
    });

    /** Both servers behave alike: every second write is enough on the real one. */
    const step = serverName.includes('real') && process.env.SOAK !== '1' ? 2 : 1;

    interface World {
      readonly namespace: string;
      readonly bucket: string;
      change(options?: Partial<ChangeAllOptions>, kill?: Kill): Promise<ChangeAllReport>;
      /** Without the keys that signed backups before. */
      secret(): Promise<Record<string, string>>;
      signingKeys(): Promise<readonly string[]>;
      repository(app: string): Promise<BackupRepository>;
      opens(app: string, password: string): Promise<boolean>;
      /** All users of a repository can open it with the Secret. */
      assertNoGap(): Promise<void>;
      assertDone(password: string): Promise<void>;
    }

    async function newWorld(): Promise<World> {
      const namespace = `velero-${++worlds}`;
      const bucket = join(work, `${serverName.split(' ')[1]}-${worlds}`);
      fs.cpSync(template, bucket, { recursive: true });
      await client.create(NAMESPACES, { metadata: { name: namespace } });
      await client.create(SECRETS, {
        metadata: { name: SECRET, namespace },
        data: { [PASSWORD_KEY]: encoded(OLD), [EARLIER_SIGNING_KEYS]: encoded(EARLIER_KEY) },
      });
      await client.create(BACKUP_STORAGE_LOCATIONS, {
        metadata: { name: 'default', namespace },
        spec: { provider: 'velero.io/fs', config: { fspath: bucket } },
      });
      const world: World = {
        namespace,
        bucket,
        change: (options = {}, kill = new Kill()) =>
          changeAllPasswords({
            client: mortalClient(client, kill, leases),
            namespace,
            clock: systemClock,
            logger: silentLogger,
            signal,
            directory: join(bucket, 'credentials'),
            defaultCredentials: () => undefined,
            openStorage: async (location) => new MortalStorage(await openStorage(location), kill),
            settle: () => Promise.resolve(),
            identity: `run-${Math.random()}`,
            undo: false,
            dryRun: false,
            newPassword: new Secret(NEW),
            timing: {
              election: { leaseMs: 1800, renewMs: 1400, retryMs: 50 },
              cachesMs: 1,
              leaseMs: 5000,
            },
            ...options,
          }),
        secret: async () => {
          const { data } = await client.get(SECRETS, { namespace, name: SECRET });
          const entries = Object.entries(data ?? {}).map(
            ([key, text]) => [key, Buffer.from(text, 'base64').toString()] as const,
          );
          return Object.fromEntries(entries.filter(([key]) => key !== EARLIER_SIGNING_KEYS));
        },
        signingKeys: async () => {
          const passwords = await repositoryPasswords({ client, namespace, signal });
          return passwords?.earlierKeys ?? [];
        },
        repository: (app) =>
          client.get(BACKUP_REPOSITORIES, { namespace, name: `${app}-default-kopia` }),
        opens: async (app, password) => {
          await using storage = await openStorage(`file://${join(bucket, 'kopia', app)}/`);
          try {
            const warn = (): void => undefined;
            await loadFormat({ storage, password: new Secret(password), clock: systemClock, warn });
            return true;
          } catch (error) {
            if (isCode(error, 'WRONG_PASSWORD')) return false;
            throw error;
          }
        },
        assertNoGap: async () => {
          expect(await world.signingKeys()).toContain(EARLIER_KEY);
          const { 'repository-password': current = '' } = await world.secret();
          for (const app of APPS) {
            const { status } = await world.repository(app);
            if (status?.phase === 'Ready')
              expect([app, await world.opens(app, current)]).toEqual([app, true]);
            else expect(status?.phase).toBe('New');
          }
        },
        assertDone: async (password) => {
          expect(await world.secret()).toEqual({ 'repository-password': password });
          // Backups that were signed with the old password stay signed. Velero's password signs
          // nothing.
          const oldKey = (await signingKey(OLD)).toString('hex');
          const isKept = password !== OLD && OLD !== WELL_KNOWN_PASSWORD;
          expect((await world.signingKeys()).includes(oldKey)).toBe(isKept);
          expect(await world.signingKeys()).toContain(EARLIER_KEY);
          for (const app of APPS) {
            const { metadata, status } = await world.repository(app);
            expect(status).toMatchObject({ phase: 'Ready', message: '' });
            expect(metadata.annotations?.[HOLD]).toBeUndefined();
            expect(await world.opens(app, password)).toBe(true);
            const files = fs.readdirSync(join(bucket, 'kopia', app));
            expect(files.filter((name) => /longshore/.test(name))).toEqual([]);
          }
        },
      };
      for (const app of APPS) await makeRepository(namespace, app);
      return world;
    }

    async function makeRepository(
      namespace: string,
      app: string,
      status: object = { phase: 'Ready', lastMaintenanceTime: '2026-05-01T12:00:00Z', message: '' },
    ): Promise<void> {
      await client.create(BACKUP_REPOSITORIES, {
        metadata: {
          namespace,
          name: `${app}-default-kopia`,
          labels: repositoryLabels({ volumeNamespace: app, storageLocation: 'default' }),
        },
        spec: {
          volumeNamespace: app,
          backupStorageLocation: 'default',
          repositoryType: 'kopia',
          maintenanceFrequency: '1h0m0s',
        },
        status,
      } as never);
    }

    const makeUpload = (namespace: string, name: string, phase: string): Promise<unknown> =>
      client.create(DATA_UPLOADS, {
        metadata: { namespace, name },
        spec: {
          snapshotType: 'CSI',
          sourcePVC: 'data',
          sourceNamespace: 'app',
          backupStorageLocation: 'default',
          operationTimeout: '10m0s',
        },
        status: { phase },
      } as never);

    it('keys of archives outlive a Secret of the password that a tool applies again', async () => {
      const world = await newWorld();
      const { namespace } = world;
      const third = 'the one after that';
      await world.change();
      await world.change({ newPassword: new Secret(third) });
      const own = await Promise.all([NEW, third].map(signingKey));
      const kept = [EARLIER_KEY, ...own.map((key) => key.toString('hex'))];
      expect(await world.signingKeys()).toEqual(kept);
      // Replaces the Secret, like kubectl replace, a sealed secret or an external secret store.
      const { metadata } = await client.get(SECRETS, { namespace, name: SECRET });
      const data = { [PASSWORD_KEY]: encoded(third) };
      await client.replace(SECRETS, { metadata, data }, { signal });
      expect(await world.signingKeys()).toEqual(kept);
      const ref = { namespace, name: ARCHIVE_KEYS_SECRET };
      const secret = await client.get(SECRETS, ref);
      expect(secret.metadata.labels).toHaveProperty('longshore.io/archive-keys');
      expect(secret.metadata.ownerReferences).toBeUndefined();
      const text = Buffer.from(secret.data?.[ARCHIVE_KEYS] ?? '', 'base64').toString();
      expect(text).toBe(`${kept.join('\n')}\n`);
    });

    it('is changed with the Secret, and the real Kopia opens each with what the Secret says', async () => {
      const world = await newWorld();
      await makeRepository(world.namespace, 'empty', {});
      const report = await world.change();
      expect(report.repositories).toEqual([
        { name: 'app-default-kopia', had: 'from' },
        { name: 'empty-default-kopia', had: 'nothing' },
        { name: 'shop-default-kopia', had: 'from' },
      ]);
      expect(report.lifted).toEqual([]);
      await world.assertDone(NEW);
      expect((await world.repository('empty')).metadata.annotations?.[HOLD]).toBeUndefined();
      if (!hasKopia) return;
      for (const app of APPS) {
        new Kopia(NEW).connect(join(world.bucket, 'kopia', app));
        expect(() => new Kopia(OLD).connect(join(world.bucket, 'kopia', app))).toThrow(/password/);
      }
    });

    /** docs/passwords.md says that Velero connects to a repository again for each use. */
    it.skipIf(!hasKopia)(
      'is refused once by a Kopia that has the format in its cache',
      async () => {
        const world = await newWorld();
        const path = join(world.bucket, 'kopia/app');
        const kopia = new Kopia(OLD).connect(path);
        kopia.run('snapshot', 'list');
        await world.change();
        const connect = (): string => {
          const words = ['repository', 'connect', 'filesystem', '--path', path];
          const [program, parameters, { env }] = kopia.command(...words);
          const changed = { ...env, KOPIA_PASSWORD: NEW };
          return spawnSync(program, parameters, { env: changed, encoding: 'utf8' }).stderr;
        };
        expect(connect()).toMatch(/invalid repository password/);
        expect(connect()).toMatch(/Connected to repository/);
      },
    );

    it('only looks in a dry run', async () => {
      const world = await newWorld();
      await makeUpload(world.namespace, 'b1-x', 'InProgress');
      const report = await world.change({ dryRun: true });
      expect(report.inTheWay).toEqual(['DataUpload b1-x (InProgress)']);
      expect(report.repositories.map(({ had }) => had)).toEqual(['from', 'from']);
      await world.assertDone(OLD);
    });

    it('is not changed while something uses a repository, and not where one does not open', async () => {
      const world = await newWorld();
      await makeUpload(world.namespace, 'waits', 'New');
      await makeUpload(world.namespace, 'over', 'Completed');
      await makeUpload(world.namespace, 'moves', 'Prepared');
      await expect(world.change()).rejects.toThrow(
        'repositories are in use by DataUpload moves (Prepared); nothing was changed: wait until these have ended',
      );
      await world.assertDone(OLD);
      await client.delete(DATA_UPLOADS, { namespace: world.namespace, name: 'moves' });
      const format = join(world.bucket, 'kopia/shop/kopia.repository.f');
      const kept = `${format}.kept`;
      fs.renameSync(format, kept);
      fs.writeFileSync(format, 'nothing of the kind');
      await expect(world.change()).rejects.toThrow(
        /^1 of 2 BackupRepositories cannot get another password: shop-default-kopia: /,
      );
      fs.renameSync(kept, format);
      await world.assertDone(OLD);
      await world.change();
      await world.assertDone(NEW);
    });

    it('is not changed when something begins right before the repositories are held', async () => {
      const world = await newWorld();
      let made = false;
      const change = world.change({
        onStep: (text) => {
          if (text !== 'holding the repositories' || made) return;
          made = true;
          void makeUpload(world.namespace, 'late', 'InProgress');
        },
      });
      await expect(change).rejects.toThrow(/DataUpload late \(InProgress\); nothing was changed/);
      await world.assertDone(OLD);
    });

    it('reaches one that a server made meanwhile with the password of before', async () => {
      const world = await newWorld();
      let made: Promise<void> | undefined;
      await world.change({
        onStep: (text) => {
          if (!text.startsWith('changing the password')) return;
          made ??= (async () => {
            const path = join(world.bucket, 'kopia/late');
            fs.cpSync(join(template, 'kopia/app'), path, { recursive: true });
            await makeRepository(world.namespace, 'late');
          })();
        },
      });
      await made;
      await world.assertDone(NEW);
      expect(await world.opens('late', NEW)).toBe(true);
      expect((await world.repository('late')).status?.phase).toBe('Ready');
    });

    it('reaches one without a BackupRepository that a backup lies in, as of another cluster', async () => {
      const world = await newWorld();
      const path = join(world.bucket, 'kopia/synced');
      fs.cpSync(join(template, 'kopia/app'), path, { recursive: true });
      const ofPod = (name: string, namespace: string, backupStorageLocation: string) =>
        client.create(POD_VOLUME_BACKUPS, {
          metadata: { namespace: world.namespace, name },
          spec: {
            backupStorageLocation,
            node: 'n',
            repoIdentifier: '',
            volume: 'data',
            pod: { kind: 'Pod', namespace, name: 'pod' },
          },
          status: { phase: 'Completed' },
        } as never);
      await ofPod('synced', 'synced', 'default');
      // These repositories cannot be looked up, and no client can request them.
      await ofPod('nothing', 'never-backed-up', 'default');
      await ofPod('gone', 'app', 'gone');
      await world.change();
      await world.assertDone(NEW);
      expect(await world.opens('synced', NEW)).toBe(true);
    });

    it.each([
      ['before', false],
      ['after', true],
    ])(
      'leaves no gap when it is killed right %s any of its writes, and the next run finishes',
      async (_, isAfter) => {
        const counting = new Kill();
        await (await newWorld()).change({}, counting);
        expect(counting.writes).toBeGreaterThan(15);
        const states = new Set<string>();
        // A dead run's Lease is in the way until it expires, so worlds wait side by side.
        await mapLimited(pointsOf(counting, 1, step), WORLDS_AT_ONCE, async (at) => {
          const world = await newWorld();
          const killed = await world.change({}, new Kill(at, isAfter)).then(
            () => undefined,
            (error: unknown) => error,
          );
          if (!isAfter) expect(killed).toBeDefined();
          const secret = await world.secret();
          states.add(Object.keys(secret).sort().join());
          await world.assertNoGap();
          // If a password was chosen, a later run does not need it.
          const isChosen = secret[NEXT] !== undefined || secret[PREVIOUS] !== undefined;
          if (isChosen) await world.change({ newPassword: undefined });
          else if (secret['repository-password'] === OLD) await world.change();
          await world.assertDone(NEW);
        });
        const all = ['repository-password', `${NEXT},repository-password`];
        expect([...states]).toEqual(
          expect.arrayContaining([...all, `${PREVIOUS},repository-password`]),
        );
      },
      200_000,
    );

    it('is taken back from wherever it was killed, unless the Secret has the new one already', async () => {
      const counting = new Kill();
      await (await newWorld()).change({}, counting);
      await mapLimited(pointsOf(counting, 2, 2), WORLDS_AT_ONCE, async (at) => {
        const world = await newWorld();
        await world.change({}, new Kill(at)).catch(() => undefined);
        const secret = await world.secret();
        const undo = world.change({ undo: true, newPassword: undefined });
        if (secret[NEXT] !== undefined) {
          await undo;
          await world.assertDone(OLD);
          return;
        }
        expect(codeOf(await undo.catch((error: unknown) => error))).toBe('NO_PASSWORD_CHANGE');
      });
    }, 200_000);

    it('is changed to one password at a time', async () => {
      const world = await newWorld();
      const kill = new Kill(12);
      await expect(world.change({}, kill)).rejects.toThrow(/killed/);
      await expect(world.change({ newPassword: new Secret('a third') })).rejects.toThrow(
        'an earlier change to another password has not ended',
      );
      await world.change();
      await world.assertDone(NEW);
      await expect(world.change({ newPassword: undefined })).rejects.toThrow(
        'there is nothing to be finished',
      );
      await expect(world.change()).rejects.toThrow('the same as the old one: nothing was changed');
      await expect(world.change({ newPassword: new Secret('blank ') })).rejects.toThrow(
        'begins or ends with a blank',
      );
      await expect(world.change({ newPassword: new Secret('') })).rejects.toThrow('is empty');
      await world.assertDone(NEW);
    });

    it('is changed by one run at a time', async () => {
      const world = await newWorld();
      let other: Promise<unknown> | undefined;
      await world.change({
        onStep: () => {
          other ??= world
            .change({
              timing: { leaseMs: 200, election: { leaseMs: 1800, renewMs: 1400, retryMs: 50 } },
            })
            .catch((error: unknown) => error);
        },
      });
      expect(codeOf(await other)).toMatch(/PASSWORD_CHANGE_UNDER_WAY|NEW_PASSWORD_UNUSABLE/);
      await world.assertDone(NEW);
    });

    it('is not written over what somebody else has written into the Secret meanwhile', async () => {
      const world = await newWorld();
      let written: Promise<unknown> | undefined;
      const change = world.change({
        onStep: (text) => {
          if (!text.startsWith('changing the password')) return;
          const data = { 'repository-password': Buffer.from('mine').toString('base64') };
          written = client.patch(SECRETS, { namespace: world.namespace, name: SECRET }, { data });
        },
      });
      await expect(change).rejects.toThrow(
        /written by somebody else meanwhile.*run the same command/,
      );
      await written;
      expect((await world.secret())['repository-password']).toBe('mine');
    });

    it('is changed nowhere if a repository is gone from its location, since it would keep the old password', async () => {
      const world = await newWorld();
      const away = join(world.bucket, 'away');
      fs.renameSync(join(world.bucket, 'kopia/shop'), away);
      await expect(world.change()).rejects.toMatchObject({
        code: 'REPOSITORIES_NOT_CHANGEABLE',
        message: expect.stringMatching(/shop-default-kopia: its repository is not at/) as string,
      });
      expect(await world.secret()).toEqual({ 'repository-password': OLD });
      fs.renameSync(away, join(world.bucket, 'kopia/shop'));
      await world.change();
      await world.assertDone(NEW);
    });

    it('is changed nowhere while one location is written once, and the message says how it can be', async () => {
      const world = await newWorld();
      const open = async (location: string): Promise<BlobStorage> => {
        const storage = await openStorage(location);
        return location.includes('/shop') ? writeOnce(storage) : storage;
      };
      await expect(world.change({ openStorage: open })).rejects.toMatchObject({
        code: 'REPOSITORIES_NOT_CHANGEABLE',
        message: expect.stringMatching(
          /^1 of 2 .*: shop-default-kopia: .* is written once, .* Take the annotation/,
        ) as string,
      });
      expect(await world.secret()).toEqual({ 'repository-password': OLD });
      await world.assertNoGap();
      await world.change();
      await world.assertDone(NEW);
    });

    it('is left alone where a location is read-only, unless its repositories have it already; nor with restic', async () => {
      const world = await newWorld();
      const location = { namespace: world.namespace, name: 'default' };
      const mode = (accessMode: string): Promise<unknown> =>
        client.patch(BACKUP_STORAGE_LOCATIONS, location, { spec: { accessMode } });
      await mode('ReadOnly');
      await expect(world.change()).rejects.toThrow(
        /location default is read-only .*change it first/,
      );
      await world.assertDone(OLD);
      // The cluster that may write there was first.
      const other = await newWorld();
      await other.change();
      for (const app of APPS) {
        fs.cpSync(join(other.bucket, 'kopia', app), join(world.bucket, 'kopia', app), {
          recursive: true,
        });
      }
      await world.change();
      await world.assertDone(NEW);
      const name = 'old-default-restic';
      await client.create(BACKUP_REPOSITORIES, {
        metadata: { namespace: world.namespace, name },
        spec: {
          volumeNamespace: 'old',
          backupStorageLocation: 'default',
          repositoryType: 'restic',
          maintenanceFrequency: '1h0m0s',
        },
      } as never);
      await expect(world.change({ newPassword: new Secret('x') })).rejects.toThrow(name);
    });

    // The embedded server has no Leases.
    if (!leases)
      it('is changed by the command, which says what it would do, does, and did', async () => {
        const world = await newWorld();
        const file = join(world.bucket, 'new-password');
        fs.writeFileSync(file, `${NEW}\n`);
        const kubeconfig = await kubeconfigWith(server as RealApi, world.namespace, RIGHTS);
        const run = async (
          ...flags: string[]
        ): Promise<{ code: number; out: string; said: string }> => {
          let [out, said] = ['', ''];
          const take = (add: (text: string) => void) => (text: string | Uint8Array) => {
            add(String(text));
            return true;
          };
          vi.spyOn(process.stdout, 'write').mockImplementation(take((text) => (out += text)));
          vi.spyOn(process.stderr, 'write').mockImplementation(take((text) => (said += text)));
          const words = ['repository', 'change-password-all', ...flags];
          const cluster = ['--kubeconfig', kubeconfig, '-n', world.namespace];
          const code = await runCommandLine(
            [...words, ...cluster],
            (error) => (said += messageOf(error)),
          );
          vi.restoreAllMocks();
          return { code, out, said };
        };
        const upload = { namespace: world.namespace, name: 'b1-x' };
        await makeUpload(world.namespace, upload.name, 'InProgress');
        const plan = await run('--dry-run', '--new-password-file', file);
        expect(plan.code).toBe(0);
        expect(plan.out).toMatch(
          /app-default-kopia +would be changed\nshop-default-kopia +would be changed/,
        );
        expect(plan.out).toContain(
          'it would be refused now: repositories are in use by DataUpload b1-x',
        );
        const refused = await run('--new-password-file', file);
        expect(refused).toMatchObject({ code: 1, out: '' });
        expect(refused.said).toContain('nothing was changed');
        await client.delete(DATA_UPLOADS, upload);
        expect((await run('--undo')).said).toContain('there is nothing to be taken back');
        expect((await run('--undo', '--new-password-file', file)).code).toBe(2);
        const done = await run('--new-password-file', file);
        expect(done.out).toBe('2 repositories and the Secret have the new password\n');
        expect(done.said).toContain('longshore: holding the repositories\n');
        await world.assertDone(NEW);
        const again = await run('--new-password-file', file, '--json');
        expect(again.said).toContain('the same as the old one');
        // Killed on the way: the next run needs no password.
        await world
          .change({ newPassword: new Secret('third') }, new Kill(9))
          .catch(() => undefined);
        const finished = await run('--json');
        expect(JSON.parse(finished.out)).toMatchObject({ dryRun: false, lifted: [] });
        await world.assertDone('third');
        // Once there is a Secret of the keys, the account may add to it.
        fs.writeFileSync(file, 'fourth');
        expect((await run('--new-password-file', file)).code).toBe(0);
        await world.assertDone('fourth');
        const { namespace } = world;
        const { data } = await client.get(SECRETS, { namespace, name: ARCHIVE_KEYS_SECRET });
        const third = (await signingKey('third')).toString('hex');
        expect(Buffer.from(data?.[ARCHIVE_KEYS] ?? '', 'base64').toString()).toContain(third);
      }, 180_000);

    it('leaves nobody out who looks first whether the repository is ready, as Velero does', async () => {
      const world = await newWorld();
      const { namespace } = world;
      let isOver = false;
      let opened = 0;
      /** Like a data mover: its CR is InProgress before it opens the repository. */
      const mover = async (name: string, app: string): Promise<void> => {
        for (let round = 0; !isOver; round++) {
          await makeUpload(namespace, `${name}-${round}`, 'InProgress');
          const query = { client, namespace, volumeNamespace: app, storageLocation: 'default' };
          await ensureBackupRepository({ ...query, signal }, 60_000);
          const access = await loadRepositoryAccess({
            ...query,
            signal,
            isWriting: true,
            directory: join(world.bucket, 'c'),
            defaultCredentials: () => undefined,
          });
          await sleep(20);
          expect(await world.opens(app, access.password.reveal())).toBe(true);
          opened++;
          const done = { status: { phase: 'Completed' } };
          await client.patch(DATA_UPLOADS, { namespace, name: `${name}-${round}` }, done);
          await sleep(Math.random() * 150);
        }
      };
      const movers = APPS.map((app) => mover(`of-${app}`, app));
      const passwords = ['one', 'two', 'three'];
      try {
        for (const password of passwords) {
          for (;;) {
            try {
              await world.change({ newPassword: new Secret(password) });
              break;
            } catch (error) {
              if (!isCode(error, 'REPOSITORIES_IN_USE')) throw error;
            }
          }
        }
      } finally {
        isOver = true;
        await Promise.all(movers);
      }
      expect(opened).toBeGreaterThan(5);
      await world.assertDone('three');
    }, 200_000);
  });
