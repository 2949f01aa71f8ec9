import { describe, expect, it } from 'vitest';
import { loadAfterRun } from '../../../../src/server/restores/contract.ts';
import { calm, type Outside } from '../../operations/support/after-run.ts';
import { podLeft, SUBJECT, World } from '../support/world.ts';

const SPEC = {
  hooks: { resources: [{ name: 'h', postHooks: [{ exec: { command: ['thaw'] } }] }] },
};
const FILE = 'longshore-after-run.json.gz';

async function waiting(...pods: string[]): Promise<World> {
  return new World('WaitingForPluginOperations', SPEC).begin([], {
    hooks: {
      attempted: pods.length,
      failed: 0,
      failures: [],
      pods: pods.map((pod) => podLeft(pod)),
    },
  });
}
const hooksIn = async (world: World) => (await loadAfterRun(world.bucket, SUBJECT))?.hooks;

describe('hooks that a run has left', () => {
  it('run while operations go on, and are in the file afterwards', async () => {
    const world = await waiting('a', 'b');
    world.addPod('a');
    world.addPod('b');
    world.exec = (text) =>
      text.startsWith('b') ? Promise.reject(new Error('frozen')) : Promise.resolve();
    const { hooks } = world.server('');
    hooks.begin(world.restore);
    hooks.begin(world.restore);
    await hooks.ended();
    expect(world.ran.sort()).toEqual(['a: thaw', 'b: thaw']);
    expect(await hooksIn(world)).toEqual({
      attempted: 2,
      failed: 1,
      pods: [],
      failures: [
        {
          time: '2026-11-21T02:00:00Z',
          namespace: 'app',
          name: 'b',
          message: 'hook h in container web failed to execute, err: frozen',
        },
      ],
    });
  });

  it('ask nobody but the bucket where none is left', async () => {
    const world = await waiting();
    const { hooks } = world.server('');
    hooks.begin(world.restore);
    await hooks.ended();
    expect(world.requests).toEqual([
      'GET backups',
      // Looks for kept files in the cluster, and for the owner in the bucket.
      ...['GET configmaps', 'get longshore-owner.json'],
      `get ${FILE}`,
    ]);
  });

  it('fail where their pod is gone', async () => {
    const world = await waiting('a');
    const { hooks } = world.server('');
    hooks.begin(world.restore);
    await hooks.ended();
    expect(await hooksIn(world)).toMatchObject({ failed: 1, pods: [] });
  });

  it('are in the file as begun while they run, and not run again after a kill', async () => {
    const world = await waiting('a');
    world.addPod('a');
    const { promise, resolve } = Promise.withResolvers<undefined>();
    world.exec = () => promise;
    const first = world.server('');
    first.hooks.begin(world.restore);
    await expect.poll(() => world.ran).toEqual(['a: thaw']);
    expect(await hooksIn(world)).toMatchObject({ pods: [{ begun: ['uid-a/spec/h/web/0'] }] });
    first.kill();
    resolve(undefined);
    await first.hooks.ended();
    const second = world.server('');
    second.hooks.begin(world.restore);
    await second.hooks.ended();
    expect(world.ran).toEqual(['a: thaw']);
    const after = await hooksIn(world);
    expect(after).toMatchObject({ failed: 1, pods: [] });
    expect(after?.failures[0]?.message).toContain('may have run; it is not run again');
  });

  it('are not run where their file is gone before they begin', async () => {
    const world = await waiting('a');
    world.addPod('a', false);
    const outside: Outside = (task) => calm(task);
    const { hooks } = world.server('', (task, mayFail) => {
      // The pods are looked up after the file is read.
      if (mayFail !== true) world.bucket.objects.delete(`restores/r1/${FILE}`);
      return outside(task, mayFail);
    });
    world.addPod('a');
    hooks.begin(world.restore);
    await hooks.ended();
    expect(world.ran).toEqual([]);
  });

  it('are run where their file was gone for a moment, and come to an end', async () => {
    const world = await waiting('a');
    world.madeHere();
    world.addPod('a');
    const path = `restores/r1/${FILE}`;
    const file = world.bucket.objects.get(path) as Buffer;
    let looks = 0;
    const { hooks } = world.server('', (task, mayFail) => {
      // The file exists for its first reader, is missing when a hook is recorded, and exists again.
      if (mayFail === true && world.requests.at(-1) === `get ${FILE}`) looks++;
      if (looks === 1 && mayFail !== true) world.bucket.objects.delete(path);
      if (looks === 3) world.bucket.objects.set(path, file);
      return calm(task);
    });
    hooks.begin(world.restore);
    await hooks.ended();
    expect(world.ran).toEqual(['a: thaw']);
    expect(await hooksIn(world)).toMatchObject({ failed: 0, pods: [] });
  });

  it('are stored as soon as the bucket is there again, and not run twice for that', async () => {
    const world = await waiting('a');
    world.addPod('a');
    let refused = 0;
    const outside: Outside = (task, mayFail) => {
      const isPut = world.requests.at(-1) === `put ${FILE}`;
      if (mayFail === true && isPut && refused++ < 3) throw new Error('the bucket is away');
      return calm(task);
    };
    const { hooks } = world.server('', outside);
    hooks.begin(world.restore);
    await hooks.ended();
    expect(refused).toBeGreaterThan(3);
    expect(world.ran).toEqual(['a: thaw']);
    expect(await hooksIn(world)).toMatchObject({ failed: 0, pods: [] });
  });

  it('are tried again where neither bucket nor pods could be asked', async () => {
    const world = await waiting('a');
    world.addPod('a');
    let times = 0;
    const outside: Outside = (task) => {
      if (++times < 4) throw new Error('away');
      return calm(task);
    };
    const { hooks } = world.server('', outside);
    hooks.begin(world.restore);
    await hooks.ended();
    expect(world.ran).toEqual(['a: thaw']);
  });

  it('end with an error when they have had their time, also where that was over before they were read', async () => {
    const world = await waiting('a', 'b');
    world.addPod('a', false);
    world.addPod('b');
    const { hooks } = world.server('');
    hooks.begin(world.restore);
    hooks.expire('u1');
    await hooks.ended();
    const left = await hooksIn(world);
    expect(left?.pods).toEqual([]);
    const about = left?.failures.find(({ name }) => name === 'a');
    expect(about?.message).toContain('hook h in container web in pod app/a not executed');
  });

  it('are not run for a Restore that is deleted, and nothing is said of them', async () => {
    const world = await waiting('a');
    world.addPod('a', false);
    const { hooks } = world.server('');
    hooks.begin(world.restore);
    await expect.poll(() => world.requests.length).toBeGreaterThan(1);
    hooks.stop('u1');
    await hooks.ended();
    expect(world.ran).toEqual([]);
    expect(await hooksIn(world)).toMatchObject({ failed: 0, pods: [{ name: 'a' }] });
  });
});
