import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { goDurationNs } from '../../../src/backup/index.ts';
import { messageOf } from '../../../src/base/index.ts';
import type { KubeObject, Pod, Restore, RestoreSpec } from '../../../src/kube/index.ts';
import { dueExecHooks, hookGroups } from '../../../src/restore/hooks/due-hooks.ts';
import { initHookAction } from '../../../src/restore/hooks/init-hooks.ts';
import { CASES, type HookCase } from '../../golden/restore-hooks/cases.ts';

interface Answer {
  readonly error?: string;
  readonly result?: { readonly spec: { readonly initContainers?: readonly object[] } };
  readonly hooks?: readonly {
    readonly name: string;
    readonly source: string;
    readonly hook: {
      readonly container: string;
      readonly command: readonly string[];
      readonly onError?: string;
      readonly execTimeout: string;
      readonly waitTimeout: string;
      readonly waitForReady: boolean;
    };
  }[];
}

const ANSWERS = JSON.parse(
  readFileSync(new URL('../../golden/restore-hooks/answers.json', import.meta.url), 'utf8'),
) as Answer[];
const { signal } = new AbortController();
const restoreOf = (spec: RestoreSpec): Restore =>
  ({ metadata: { name: 'r', namespace: 'velero', uid: 'restore-uid' }, spec }) as Restore;

async function initContainers({ document, hooks }: HookCase, more: RestoreSpec = {}) {
  const item = document as KubeObject;
  const restore = restoreOf({ ...(hooks && { hooks }), ...more });
  const before = structuredClone(item);
  const output = await initHookAction().execute(
    { item, itemFromBackup: item, restore },
    { signal },
  );
  expect(item).toEqual(before);
  return (output.item as Pod).spec.initContainers;
}

/** Without what Go's types add to a container. */
const plain = (containers: readonly object[] = []) =>
  containers.map((each) =>
    Object.fromEntries(
      Object.entries(each).filter(([key, value]) => key !== 'resources' && value !== null),
    ),
  );

const inits = CASES.map((each, i) => [each.about, each, ANSWERS[i] ?? {}] as const);

describe('init hooks', () => {
  it.each(inits.filter(([, { ask }]) => ask === 'init-hooks'))(
    'puts into pods what Velero does: %s',
    async (_about, each, { error, result }) => {
      if (error !== undefined) {
        await expect(initContainers(each)).rejects.toThrow(error);
        return;
      }
      expect(plain(await initContainers(each))).toEqual(plain(result?.spec.initContainers));
    },
  );

  const named = (annotations: Record<string, string>): HookCase => ({
    ask: 'init-hooks',
    about: '',
    document: {
      metadata: { name: 'p', namespace: 'app', annotations },
      spec: { containers: [] },
    } as HookCase['document'],
  });

  it('gives a container without a name the same one each time', async () => {
    const pod = named({ 'init.hook.restore.velero.io/container-image': 'i' });
    const [first] = (await initContainers(pod)) ?? [];
    const [second] = (await initContainers(pod)) ?? [];
    expect(first?.name).toMatch(/^velero-restore-init-[0-9a-f]{8}$/);
    expect(second).toEqual(first);
    // Velero's own program crashes where there is no command.
    expect(first).not.toHaveProperty('command');
  });

  it('looks at the namespace that the pod is restored to', async () => {
    const hooks = (namespace: string): NonNullable<RestoreSpec['hooks']> => ({
      resources: [
        {
          name: 'h',
          includedNamespaces: [namespace],
          postHooks: [{ init: { initContainers: [{ name: 'n', image: 'i', command: ['c'] }] } }],
        },
      ],
    });
    const namespaceMapping = { app: 'copy' };
    const pod = named({});
    expect(await initContainers(pod, { namespaceMapping, hooks: hooks('copy') })).toHaveLength(1);
    expect(await initContainers(pod, { namespaceMapping, hooks: hooks('app') })).toBeUndefined();
  });
});

describe('exec hooks', () => {
  it.each(inits.filter(([, { ask }]) => ask === 'exec-hooks'))(
    'are those that Velero sees: %s',
    (about, { document, hooks }, answer) => {
      const warnings: string[] = [];
      const groups = hookGroups(hooks);
      const due = dueExecHooks(document as unknown as Pod, groups, (text) => warnings.push(text));
      const ms = (text: string): number => Number((goDurationNs(text) ?? 0n) / 1_000_000n);
      const theirs = (answer.hooks ?? []).map(({ name, source, hook }) => ({
        name,
        source,
        container: hook.container,
        command: hook.command,
        onError: hook.onError ?? '',
        execMs: ms(hook.execTimeout),
        waitMs: ms(hook.waitTimeout),
        waitForReady: hook.waitForReady,
      }));
      // They have them by container.
      const sorted = due.toSorted(
        (a, b) => (a.container === 'side' ? 1 : 0) - (b.container === 'side' ? 1 : 0),
      );
      expect(
        sorted.map(({ name, source, container, command, onError, execTimeout, ...each }) => ({
          name,
          source,
          container,
          command,
          onError,
          execMs: ms(execTimeout === '' ? '0' : execTimeout),
          waitMs: each.waitMs,
          waitForReady: each.waitForReady,
        })),
      ).toEqual(theirs);
      expect(warnings.length).toBe(about.includes('cannot be read') ? 3 : 0);
    },
  );

  it('cannot be made of a selector that is none', () => {
    const labelSelector = { matchExpressions: [{ key: 'a', operator: 'Has' }] };
    let text = '';
    try {
      hookGroups({ resources: [{ name: 'h', labelSelector }] });
    } catch (error) {
      text = messageOf(error);
    }
    expect(text).toContain('"Has" is not a valid label selector operator');
  });
});
