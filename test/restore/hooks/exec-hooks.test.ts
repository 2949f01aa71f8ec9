import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { About, PodExec } from '../../../src/backup/index.ts';
import type { Pod, RestoreHook, RestoreSpec } from '../../../src/kube/index.ts';
import { type HookRecord, RestoreHooks } from '../../../src/restore/hooks/exec-hooks.ts';
import { trimmedPod } from '../../../src/restore/hooks/pod-watch.ts';

type Change = Parameters<
  Parameters<ConstructorParameters<typeof RestoreHooks>[0]['watch']['onChange']>[0]
>;

/** A cluster with pods, whose watch can miss them. */
class World {
  readonly pods = new Map<string, Pod>();
  readonly watched = new Map<string, Pod>();
  readonly #listeners: ((...change: Change) => void)[] = [];
  readonly ran: string[] = [];
  readonly lines: string[] = [];
  readonly records: HookRecord[] = [];
  looks = 0;
  atOnce = 0;
  mostAtOnce = 0;
  exec: PodExec = async () => Promise.resolve({ stdout: '', stderr: '' });

  set(pod: Pod): Pod {
    this.pods.set(pod.metadata.name, pod);
    this.watched.set(pod.metadata.name, pod);
    for (const listener of this.#listeners) listener(pod, undefined);
    return pod;
  }

  delete(name: string, fromWatchOnly = false): void {
    const pod = this.pods.get(name);
    if (!fromWatchOnly) this.pods.delete(name);
    this.watched.delete(name);
    for (const listener of this.#listeners) listener(undefined, pod);
  }

  readonly begun: string[] = [];
  /** What comes between a hook's turn and its command. */
  note: () => Promise<void> = () => Promise.resolve();

  hooks(
    postHooks: readonly RestoreHook[],
    earlier: readonly HookRecord[] = [],
    begun: readonly string[] = [],
  ): RestoreHooks {
    const log = (level: string) => (message: string, about?: About) => {
      if (level !== 'info') this.lines.push(`${level} ${about?.namespace ?? ''}: ${message}`);
    };
    const spec: RestoreSpec['hooks'] = { resources: [{ name: 'h', postHooks }] };
    return new RestoreHooks({
      spec,
      earlier,
      begun,
      onBegin: async (id) => {
        await this.note();
        this.begun.push(id);
      },
      watch: {
        onChange: (listener) => {
          this.#listeners.push(listener);
          for (const pod of this.pods.values()) listener(pod, undefined);
        },
        get: ({ name }) => this.watched.get(name),
        look: async ({ name }) => {
          this.looks++;
          return Promise.resolve(this.pods.get(name));
        },
      },
      exec: async (question, signal) => {
        this.mostAtOnce = Math.max(this.mostAtOnce, ++this.atOnce);
        this.ran.push(`${question.pod}/${question.container}: ${question.command.join(' ')}`);
        try {
          return await this.exec(question, signal);
        } finally {
          this.atOnce--;
        }
      },
      log: { info: log('info'), warn: log('warn'), error: log('error') },
      onRecord: (record) => this.records.push(record),
    });
  }
}

const created = (name: string, containers: readonly string[] = ['web'], uid = `uid-${name}`): Pod =>
  ({
    metadata: { name, namespace: 'app', uid },
    spec: { containers: containers.map((each) => ({ name: each, image: 'i' })) },
    status: { phase: 'Pending' },
  }) as Pod;
const withStatus = (
  pod: Pod,
  up: readonly string[],
  ready: readonly string[] = [],
  phase = 'Running',
) =>
  ({
    ...pod,
    status: {
      phase,
      containerStatuses: pod.spec.containers.map(({ name }) => ({
        name,
        ready: ready.includes(name),
        state: up.includes(name) ? { running: {} } : { waiting: {} },
      })),
    },
  }) as Pod;
const exec = (command: string, rest: NonNullable<RestoreHook['exec']> = {}): RestoreHook => ({
  exec: { command: [command], ...rest },
});
const PLACE = { namespace: 'app' };
const { signal } = new AbortController();
const HOUR_MS = 3_600_000;
const finish = (hooks: RestoreHooks, timeoutMs = 4 * HOUR_MS) =>
  hooks.finish({ timeoutMs, signal });

describe('exec hooks of restored pods', () => {
  let world: World;
  beforeEach(() => {
    vi.useFakeTimers();
    world = new World();
  });
  afterEach(() => {
    vi.useRealTimers();
  });
  const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);

  it('run when their container is up, in their order, and are counted', async () => {
    const hooks = world.hooks([exec('one'), exec('side', { container: 'side' }), exec('two')]);
    const pod = world.set(created('p', ['web', 'side']));
    hooks.podCreated(pod);
    expect(hooks.counts).toEqual({ hooksAttempted: 3, hooksFailed: 0 });
    await pass(1000);
    expect(world.ran).toEqual([]);
    world.set(withStatus(pod, ['side']));
    await pass(0);
    expect(world.ran).toEqual(['p/side: side']);
    world.set(withStatus(pod, ['side', 'web']));
    await finish(hooks);
    expect(world.ran).toEqual(['p/side: side', 'p/web: one', 'p/web: two']);
    expect(hooks.counts).toEqual({ hooksAttempted: 3, hooksFailed: 0 });
    expect(world.lines).toEqual([]);
    expect(world.records.map(({ hasFailed }) => hasFailed)).toEqual([false, false, false]);
  });

  it('of a pod that was deleted before this server took over count as they ended, or as failed', async () => {
    const group = [exec('good'), exec('bad'), exec('open')];
    world.exec = async ({ command }) =>
      command[0] === 'bad'
        ? Promise.reject(new Error('exit code 1'))
        : Promise.resolve({ stdout: '', stderr: '' });
    const before = world.hooks(group);
    before.podCreated(world.set(withStatus(created('p'), ['web'])));
    await finish(before);
    const earlier = world.records.slice(0, 2);
    expect(earlier.map(({ pod, hasFailed }) => [pod, hasFailed])).toEqual([
      ['app/p', false],
      ['app/p', true],
    ]);
    world.lines.length = 0;
    const after = world.hooks(group, earlier);
    const metadata = { ...created('p').metadata, uid: 'in-the-backup' };
    after.podGone({ ...created('p'), metadata });
    expect(after.counts).toEqual({ hooksAttempted: 3, hooksFailed: 2 });
    expect(world.lines).toEqual([
      'error app: hook h in container web in pod app/p not executed: the pod was deleted before this server took over; the command may have run',
    ]);
    // The next server says nothing twice.
    const last = world.hooks(group, [...earlier, ...world.records.slice(3)]);
    world.lines.length = 0;
    last.podGone({ ...created('p'), metadata });
    expect(last.counts).toEqual({ hooksAttempted: 3, hooksFailed: 2 });
    expect(world.lines).toEqual([]);
  });

  it('wait until all of a container is ready where one of them asks for it', async () => {
    const hooks = world.hooks([exec('one'), exec('two', { waitForReady: true })]);
    const pod = world.set(created('p'));
    hooks.podCreated(pod);
    world.set(withStatus(pod, ['web']));
    await pass(1000);
    expect(world.ran).toEqual([]);
    world.set(withStatus(pod, ['web'], ['web']));
    await finish(hooks);
    expect(world.ran).toHaveLength(2);
  });

  it('go on after one that fails, and do not where onError is Fail', async () => {
    world.exec = async ({ command }) =>
      command[0]?.startsWith('bad') === true
        ? Promise.reject(new Error('exit code 1'))
        : Promise.resolve({ stdout: '', stderr: '' });
    const hooks = world.hooks([exec('bad'), exec('bad too', { onError: 'Fail' }), exec('never')]);
    hooks.podCreated(world.set(created('p')));
    hooks.podCreated(world.set(created('q')));
    for (const pod of ['p', 'q']) world.set(withStatus(created(pod), ['web']));
    await finish(hooks);
    expect(world.ran).toEqual(['p/web: bad', 'q/web: bad', 'p/web: bad too', 'q/web: bad too']);
    expect(hooks.counts).toEqual({ hooksAttempted: 6, hooksFailed: 6 });
    expect(world.lines.filter((line) => !line.includes('pod app/q')).slice(0, 3)).toEqual([
      'error app: hook h in container web failed to execute, err: exit code 1',
      'error app: hook h in container web failed to execute, err: exit code 1',
      'error app: hook h in container web failed to execute, err: exit code 1',
    ]);
    expect(world.lines.at(-1)).toBe(
      'error app: hook h in container web in pod app/q not executed: the hook before it failed: hook h in container web failed to execute, err: exit code 1',
    );
  });

  it('run in a pod that was up before anybody waited for it', async () => {
    const hooks = world.hooks([exec('one')]);
    const pod = created('p');
    world.set(withStatus(pod, ['web']));
    hooks.podCreated(pod);
    await finish(hooks);
    expect(world.ran).toEqual(['p/web: one']);
  });

  it('give up when their longest wait is over, in words', async () => {
    const hooks = world.hooks([
      exec('one', { waitTimeout: '1m' }),
      exec('two', { waitTimeout: '5m' }),
    ]);
    hooks.podCreated(world.set(created('p')));
    await pass(299_000);
    expect(world.lines).toEqual([]);
    await pass(2000);
    await finish(hooks);
    expect(world.lines).toEqual([
      'error app: hook h in container web in pod app/p not executed: its container was not up after 300 s',
      'error app: hook h in container web in pod app/p not executed: its container was not up after 300 s',
    ]);
    expect(hooks.counts.hooksFailed).toBe(2);
    expect(world.ran).toEqual([]);
  });

  it('do not run when they have expired, and the others do', async () => {
    const hooks = world.hooks([
      exec('one', { waitTimeout: '1m' }),
      exec('two', { waitTimeout: '5m' }),
      exec('three'),
    ]);
    const pod = world.set(created('p'));
    hooks.podCreated(pod);
    await pass(61_000);
    world.set(withStatus(pod, ['web']));
    await finish(hooks);
    expect(world.ran).toEqual(['p/web: two', 'p/web: three']);
    expect(world.lines).toEqual(['error app: hook h in container web expired before executing']);
  });

  it('end with an error when the pod never comes up and nothing limits the wait', async () => {
    const hooks = world.hooks([exec('one')]);
    hooks.podCreated(world.set(created('p')));
    const done = finish(hooks, HOUR_MS);
    await pass(HOUR_MS - 1);
    expect(hooks.waiting).toBe(1);
    await pass(1);
    await done;
    expect(world.lines).toEqual([
      'error app: hook h in container web in pod app/p not executed: the restore waits for its hooks no longer than 3600 s',
    ]);
  });

  it('end with an error that names no time when the time is over already', async () => {
    const hooks = world.hooks([exec('one')]);
    hooks.podCreated(world.set(created('p')));
    const done = finish(hooks, 0);
    await pass(1);
    await done;
    expect(world.lines).toEqual([
      'error app: hook h in container web in pod app/p not executed: the time for the hooks of this restore is over',
    ]);
  });

  it.each(['Succeeded', 'Failed'])('end when the pod is %s', async (phase) => {
    const hooks = world.hooks([exec('one')]);
    const pod = world.set(created('p'));
    hooks.podCreated(pod);
    world.set(withStatus(pod, [], [], phase));
    await finish(hooks);
    expect(world.lines).toEqual([
      `error app: hook h in container web in pod app/p not executed: pod entered phase ${phase} before some post-restore exec hooks ran`,
    ]);
  });

  it('end when the pod is deleted, also where one of the same name takes its place', async () => {
    const hooks = world.hooks([exec('one')]);
    hooks.podCreated(world.set(created('p')));
    hooks.podCreated(world.set(created('q')));
    world.delete('p');
    world.delete('q');
    world.set(withStatus(created('q', ['web'], 'another'), ['web']));
    await pass(0);
    await finish(hooks);
    expect(world.ran).toEqual([]);
    expect(world.lines).toEqual(
      ['p', 'q'].map(
        (name) =>
          `error app: hook h in container web in pod app/${name} not executed: the pod was deleted before all hooks were executed`,
      ),
    );
  });

  it('ask for a pod that has lost the label of the restore, and not for one that is in the watch', async () => {
    const hooks = world.hooks([exec('one')]);
    const pod = world.set(created('p'));
    hooks.podCreated(pod);
    await pass(HOUR_MS);
    expect(world.looks).toBe(0);
    world.delete('p', true);
    await pass(60_000);
    expect(world.looks).toBeGreaterThan(0);
    world.pods.set('p', withStatus(pod, ['web']));
    await pass(20_000);
    await finish(hooks);
    expect(world.ran).toEqual(['p/web: one']);
  });

  it('run in a native sidecar as soon as it is up, or ready', async () => {
    const hooks = world.hooks([
      exec('one', { container: 'freezer' }),
      exec('two', { container: 'proxy', waitForReady: true }),
      exec('three', { container: 'setup' }),
    ]);
    const pod = created('p');
    const sidecar = (name: string) => ({ name, image: 'i', restartPolicy: 'Always' });
    pod.spec.initContainers = [sidecar('freezer'), { name: 'setup', image: 'i' }, sidecar('proxy')];
    hooks.podCreated(world.set(pod));
    const seen = (isReady: boolean): Pod => ({
      ...pod,
      status: {
        phase: 'Pending',
        initContainerStatuses: [
          { name: 'freezer', ready: false, state: { running: {} } },
          { name: 'proxy', ready: isReady, state: { running: {} } },
        ],
      },
    });
    world.set(seen(false));
    await pass(0);
    expect(world.ran).toEqual(['p/freezer: one']);
    world.set(seen(true));
    await finish(hooks);
    expect(world.ran).toEqual(['p/freezer: one', 'p/proxy: two']);
    expect(world.lines).toEqual([
      'warn app: Pod app/p does not have container setup: the post-restore exec hook h is not run',
    ]);
  });

  it('see as much of a pod in the watch as sidecars need', () => {
    const sidecar = { name: 'freezer', restartPolicy: 'Always' };
    const status = { initContainerStatuses: [{ name: 'freezer', ready: true }] };
    const { spec } = created('p');
    const pod = {
      ...created('p'),
      spec: { ...spec, initContainers: [{ ...sidecar, image: 'i' }] },
      status,
    } as Pod;
    expect(trimmedPod(pod)).toMatchObject({ spec: { initContainers: [sidecar] }, status });
  });

  it('are not waited for in a container that the pod does not have', async () => {
    const hooks = world.hooks([exec('one', { container: 'gone' })]);
    hooks.podCreated(world.set(created('p')));
    await finish(hooks);
    expect(hooks.counts).toEqual({ hooksAttempted: 1, hooksFailed: 0 });
    expect(world.lines).toEqual([
      'warn app: Pod app/p does not have container gone: the post-restore exec hook h is not run',
    ]);
  });

  it('end by their own time-out, which begins when they do', async () => {
    vi.useRealTimers();
    world.exec = (_question, own) =>
      new Promise((_resolve, reject) => {
        own.addEventListener('abort', () => {
          reject(new Error('aborted'));
        });
      });
    const hooks = world.hooks([exec('hangs', { execTimeout: '50ms' })]);
    hooks.podCreated(world.set(withStatus(created('p'), ['web'])));
    await finish(hooks);
    expect(world.lines).toEqual([
      'error app: hook h in container web failed to execute, err: timed out after 50ms',
    ]);
  });

  it('run sixteen at once at most', async () => {
    world.exec = async () => {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      return { stdout: '', stderr: '' };
    };
    const hooks = world.hooks([exec('one')]);
    for (let i = 0; i < 100; i++) {
      hooks.podCreated(world.set(withStatus(created(`p${i}`), ['web'])));
    }
    await pass(10_000);
    await finish(hooks);
    expect(world.ran).toHaveLength(100);
    expect(world.mostAtOnce).toBe(16);
  });

  it('do not run again after a restart, and are counted', async () => {
    const first = world.hooks([exec('one'), exec('two'), exec('three', { container: 'side' })]);
    const pod = world.set(withStatus(created('p', ['web', 'side']), ['web']));
    first.podCreated(pod);
    await pass(0);
    await first.close();
    expect(world.ran).toEqual(['p/web: one', 'p/web: two']);
    expect(world.lines).toEqual([]);
    const second = world.hooks(
      [exec('one'), exec('two'), exec('three', { container: 'side' })],
      world.records.map((each, i) => ({ ...each, hasFailed: i === 0 })),
    );
    second.podCreated(pod);
    world.set(withStatus(pod, ['web', 'side']));
    await finish(second);
    expect(world.ran).toEqual(['p/web: one', 'p/web: two', 'p/side: three']);
    expect(second.counts).toEqual({ hooksAttempted: 3, hooksFailed: 1 });
  });

  it('are asked for once, and noted before', async () => {
    const questions: (boolean | undefined)[] = [];
    world.exec = ({ isOnce }) => {
      expect(world.begun).toEqual(['uid-p/spec/h/web/0']);
      questions.push(isOnce);
      return Promise.resolve({ stdout: '', stderr: '' });
    };
    const hooks = world.hooks([exec('one')]);
    hooks.podCreated(world.set(withStatus(created('p'), ['web'])));
    await finish(hooks);
    expect(questions).toEqual([true]);
  });

  it('do not run where nobody could note that they are begun', async () => {
    world.note = () => Promise.reject(new Error('the bucket is away'));
    const hooks = world.hooks([exec('one'), exec('two')]);
    hooks.podCreated(world.set(withStatus(created('p'), ['web'])));
    await pass(0);
    expect(world.ran).toEqual([]);
    expect(world.records).toEqual([]);
    expect(world.lines).toEqual([]);
  });

  it('do not run again that were begun when a process died, and are failures', async () => {
    const first = 'uid-p/spec/h/web/0';
    const hooks = world.hooks([exec('one'), exec('two')], [], [first]);
    hooks.podCreated(world.set(withStatus(created('p'), ['web'])));
    await finish(hooks);
    expect(world.ran).toEqual(['p/web: two']);
    expect(world.lines).toEqual([
      'error app: hook h in container web failed to execute, err: it was begun by a server that has ended since, and the command may have run; it is not run again',
    ]);
    expect(world.records).toEqual([
      { id: first, pod: 'app/p', hasFailed: true },
      { id: 'uid-p/spec/h/web/1', pod: 'app/p', hasFailed: false },
    ]);
    expect(hooks.counts).toEqual({ hooksAttempted: 2, hooksFailed: 1 });
  });

  it('do not run after one of their pod that was begun, where its onError is Fail', async () => {
    const hooks = world.hooks([exec('one', { onError: 'Fail' }), exec('two')]);
    const pod = world.set(withStatus(created('p'), ['web']));
    const open = ['uid-p/spec/h/web/0', 'uid-p/spec/h/web/1'];
    const begun = ['uid-p/spec/h/web/0'];
    hooks.podLeft({ ...PLACE, name: 'p', uid: 'uid-p', waitedMs: 0, open, begun }, pod);
    await finish(hooks);
    expect(world.ran).toEqual([]);
    expect(world.lines[1]).toContain('not executed: the hook before it failed');
    expect(hooks.counts.hooksFailed).toBe(2);
  });

  it('say nothing of hooks that are left when the restore goes on elsewhere', async () => {
    const hooks = world.hooks([exec('one')]);
    hooks.podCreated(world.set(created('p')));
    const cancel = new AbortController();
    const done = hooks.finish({ timeoutMs: HOUR_MS, signal: cancel.signal });
    cancel.abort(new Error('leadership is lost'));
    await expect(done).rejects.toThrow('leadership is lost');
    expect(world.lines).toEqual([]);
    expect(world.records).toEqual([]);
    expect(hooks.counts.hooksFailed).toBe(0);
  });

  it('are handed over when the run is over: what runs ends, and nothing else is begun', async () => {
    const { promise, resolve } = Promise.withResolvers<{ stdout: string; stderr: string }>();
    world.exec = () => promise;
    const hooks = world.hooks([exec('one'), exec('two')]);
    hooks.podCreated(world.set(withStatus(created('up'), ['web'])));
    hooks.podCreated(world.set(created('late')));
    await pass(2000);
    const over = hooks.handOver(signal);
    await pass(500);
    resolve({ stdout: '', stderr: '' });
    await pass(0);
    expect(await over).toEqual([
      { ...PLACE, name: 'up', uid: 'uid-up', waitedMs: 2500, open: ['uid-up/spec/h/web/1'] },
      {
        ...PLACE,
        name: 'late',
        uid: 'uid-late',
        waitedMs: 2500,
        open: ['uid-late/spec/h/web/0', 'uid-late/spec/h/web/1'],
      },
    ]);
    expect(world.ran).toEqual(['up/web: one']);
    expect(hooks.counts).toEqual({ hooksAttempted: 4, hooksFailed: 0 });
    expect(world.records).toEqual([{ id: 'uid-up/spec/h/web/0', pod: 'app/up', hasFailed: false }]);
  });

  it('are handed over where they wait for their turn: only those that run are waited for', async () => {
    const hooks = world.hooks([exec('one')]);
    const { promise, resolve } = Promise.withResolvers<{ stdout: string; stderr: string }>();
    world.exec = () => promise;
    for (let at = 0; at < 20; at++) {
      const pod = world.set(created(`p${at}`));
      hooks.podCreated(pod);
      world.set(withStatus(pod, ['web']));
    }
    await pass(0);
    expect(world.ran).toHaveLength(16);
    const over = hooks.handOver(signal);
    resolve({ stdout: '', stderr: '' });
    await pass(0);
    expect((await over).map(({ name, open }) => [name, open.length])).toEqual([
      ['p16', 1],
      ['p17', 1],
      ['p18', 1],
      ['p19', 1],
    ]);
    expect(world.ran).toHaveLength(16);
    expect(world.begun).toHaveLength(16);
  });

  it('are gone on with: only those that are open, with the time that they have waited', async () => {
    const hooks = world.hooks([
      exec('one'),
      exec('two'),
      exec('three', { container: 'side', waitTimeout: '10s' }),
    ]);
    const pod = world.set(created('p', ['web', 'side']));
    const open = ['uid-p/spec/h/web/1', 'uid-p/spec/h/side/2'];
    hooks.podLeft({ ...PLACE, name: 'p', uid: 'uid-p', waitedMs: 9000, open }, pod);
    await pass(2000);
    world.set(withStatus(pod, ['web', 'side']));
    await finish(hooks);
    expect(world.ran).toEqual(['p/web: two']);
    expect(hooks.counts).toEqual({ hooksAttempted: 0, hooksFailed: 1 });
    expect(world.lines).toEqual(['error app: hook h in container side expired before executing']);
  });

  it('fail where their pod is gone, is another one, or has lost them', async () => {
    const hooks = world.hooks([exec('one')]);
    const left = { ...PLACE, waitedMs: 0 };
    hooks.podLeft({ ...left, name: 'a', uid: 'uid-a', open: ['uid-a/spec/h/web/0'] }, undefined);
    const other = world.set(created('b', ['web'], 'uid-new'));
    hooks.podLeft({ ...left, name: 'b', uid: 'uid-b', open: ['uid-b/spec/a/b/web/0'] }, other);
    const lost = world.set(created('c'));
    hooks.podLeft({ ...left, name: 'c', uid: 'uid-c', open: ['uid-c/spec/x/web/0'] }, lost);
    await finish(hooks);
    expect(world.lines).toEqual([
      'error app: hook h not executed: the pod was deleted before all hooks were executed',
      'error app: hook a/b not executed: the pod was deleted before all hooks were executed',
      'error app: hook x not executed: its pod no longer has it',
    ]);
    expect(world.records.map(({ hasFailed }) => hasFailed)).toEqual([true, true, true]);
  });
});
