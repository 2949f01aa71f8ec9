import { expect, it } from 'vitest';
import { HOUR_NS, MINUTE_NS, SECOND_NS } from '../../../../src/base/index.ts';
import { type AfterRunWorld, done, progress } from './after-run.ts';

interface SteppedWorld extends AfterRunWorld {
  readonly status: object;
  server(scratch: string): { step(): Promise<{ readonly hasLeft: boolean }> };
}

/** Tests for both kinds with followed operations. `word` begins the names of its counts. */
export function itFollowsOperations(
  word: 'backup' | 'restore',
  scratch: string,
  waiting: (...ids: string[]) => Promise<SteppedWorld>,
): void {
  it('asks neither the API server nor the bucket while only progress changes', async () => {
    const world = await waiting('op-1', 'op-2');
    const server = world.server(scratch);
    await server.step();
    world.requests.length = 0;
    for (let i = 2; i < 20; i++) {
      world.answers.set('op-1', progress({ nCompleted: i }));
      world.clock.advance(10n * SECOND_NS);
      expect((await server.step()).hasLeft).toBe(false);
    }
    expect(world.requests).toEqual([]);
  });

  it('cancels an operation that takes longer than it may, and counts it as failed', async () => {
    const world = await waiting('op-1');
    const server = world.server(scratch);
    await server.step();
    world.clock.advance(HOUR_NS + SECOND_NS);
    await server.step();
    expect(world.canceled).toEqual(['op-1']);
    expect(world.status).toMatchObject({ phase: 'FinalizingPartiallyFailed', errors: 1 });
  });

  it('has patience with a plugin that cannot be asked, and none with an ID that is invalid', async () => {
    const world = await waiting('op-1', 'op-2');
    const server = world.server(scratch);
    world.answers.set('op-1', { kind: 'unasked', error: 'no route', isLasting: false });
    world.answers.delete('op-2');
    await server.step();
    expect(world.status).toMatchObject({ [`${word}ItemOperationsFailed`]: 1 });
    world.clock.advance(4n * MINUTE_NS);
    await server.step();
    expect(world.status).toMatchObject({ [`${word}ItemOperationsFailed`]: 1 });
    world.answers.set('op-1', done);
    world.clock.advance(MINUTE_NS);
    await server.step();
    expect(world.status).toMatchObject({
      phase: 'FinalizingPartiallyFailed',
      [`${word}ItemOperationsCompleted`]: 1,
      errors: 1,
    });
  });
}
