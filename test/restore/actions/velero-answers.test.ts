import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { exactJson, isCode, messageOf, parseJsonExact } from '../../../src/base/index.ts';
import type { KubeObject, Restore } from '../../../src/kube/index.ts';
import { openRestoreActions } from '../../../src/restore/index.ts';
import { type ActionCase, CASES } from '../../golden/restore-actions/cases.ts';
import { aRestore } from '../../support/builders.ts';

interface Answer {
  readonly error?: string;
  readonly item?: object;
  readonly additionalItems?: readonly object[];
  readonly skipped?: boolean;
}

const ANSWERS = JSON.parse(
  readFileSync(new URL('../../golden/restore-actions/answers.json', import.meta.url), 'utf8'),
) as Answer[];
const { signal } = new AbortController();

/** Lists by label and by namespace; a class by its name. */
function clusterOf({ action, configMaps = [], storageClasses = [], accounts = [] }: ActionCase) {
  const lists: Record<string, object[]> = {
    configmaps: configMaps.map((each, i) => ({ metadata: { name: `config-${i}` }, ...each })),
    serviceaccounts: accounts.map((name) => ({ metadata: { name, namespace: 'app' } })),
  };
  return {
    list: (resource: { plural: string }, { namespace, labelSelector }: Record<string, string>) => {
      const isAsked =
        resource.plural === 'configmaps'
          ? namespace === 'velero' &&
            labelSelector === `velero.io/plugin-config,${action}=RestoreItemAction`
          : namespace === 'app';
      return Promise.resolve(isAsked ? lists[resource.plural] : []);
    },
    find: (_resource: unknown, { name }: { name: string }) =>
      Promise.resolve(storageClasses.includes(name) ? { metadata: { name } } : undefined),
  };
}

/**
 * Removes the empty values that Go's types add for missing fields: nulls, empty objects and empty
 * lists.
 */
function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== 'object' || value === null) return value;
  const kept = Object.entries(value).flatMap(([key, each]) => {
    const one = plain(each);
    const isEmpty = one === null || (typeof one === 'object' && Object.keys(one).length === 0);
    return isEmpty || one === undefined ? [] : [[key, one] as const];
  });
  return Object.fromEntries(kept);
}

async function ask(each: ActionCase): Promise<Answer> {
  const actions = openRestoreActions(clusterOf(each) as never, 'velero');
  const action = actions.find(({ name }) => name === each.action);
  if (!action) throw new Error(`no action ${each.action}`);
  const item = each.item as KubeObject;
  const before = structuredClone(item);
  const restore = { metadata: { name: 'r', namespace: 'velero' }, spec: each.restore ?? {} };
  try {
    const output = await action.execute(
      {
        item,
        itemFromBackup: (each.itemFromBackup ?? item) as KubeObject,
        restore: restore as unknown as Restore,
      },
      { signal },
    );
    return {
      item: output.item ?? item,
      ...(output.additionalItems?.length && { additionalItems: output.additionalItems }),
      ...(output.isSkipped === true && { skipped: true }),
    };
  } catch (error) {
    return { error: messageOf(error) };
  } finally {
    expect(item).toEqual(before);
  }
}

describe.each(CASES.map((each, i) => ({ each, answer: ANSWERS[i] as Answer })))(
  '$each.about',
  ({ each, answer }) => {
    it('is as with Velero', async () => {
      const ours = await ask(each);
      // Our messages about a bad annotation have other words than Velero's.
      if (answer.error !== undefined && each.action === 'velero.io/service') {
        expect(ours.error).toMatch(
          /^the annotation .* (cannot be read: |has a node port that is no)/,
        );
        return;
      }
      // Go's types have a status with zeros in it, also for an object without one.
      const theirs = structuredClone(answer) as { item?: { status?: object } };
      if (!('status' in each.item)) delete theirs.item?.status;
      expect(plain(ours)).toEqual(plain(theirs));
    });
  },
);

it('has an answer for each question', () => {
  expect(ANSWERS.length).toBe(CASES.length);
  const asked = new Set(CASES.map(({ action }) => action));
  const all = openRestoreActions({} as never, 'velero').map(({ name }) => name);
  expect([...asked].sort()).toEqual(all);
});

/**
 * The API server takes any number of 64 bits there, and one process reads it as the next writes it.
 */
it.each([
  ['pod', '{"kind":"Pod","spec":{"terminationGracePeriodSeconds":9223372036854775807}}'],
  ['job', '{"kind":"Job","spec":{"activeDeadlineSeconds":9223372036854775807,"selector":{}}}'],
  ['service', '{"kind":"Service","spec":{"x":9223372036854775807,"ports":[]}}'],
  [
    'change-storage-class',
    '{"kind":"StatefulSet","spec":{"template":{"spec":{"tolerations":[{"tolerationSeconds":9223372036854775807}]}}}}',
  ],
])('the action %s keeps a number that is longer than those of JavaScript', async (name, text) => {
  const client = { list: () => Promise.resolve([]) };
  const action = openRestoreActions(client as never, 'velero').find(
    (each) => each.name === `velero.io/${name}`,
  );
  const given = parseJsonExact(text) as KubeObject;
  const item = { ...given, metadata: { name: 'x', namespace: 'app' } } as KubeObject;
  const input = { item, itemFromBackup: item, restore: aRestore({ spec: {} }) };
  const output = await action?.execute(input, { signal });
  expect(exactJson(output?.item)).toBe(exactJson(item));
});

describe('where Velero is wrong', () => {
  it('a token is looked for where its Secret comes to', async () => {
    const asked: string[] = [];
    const client = {
      list: (_resource: unknown, { namespace }: { namespace: string }) => {
        asked.push(namespace);
        return Promise.resolve([{ metadata: { name: 'robot' } }]);
      },
    };
    const action = openRestoreActions(client as never, 'velero').find(
      ({ name }) => name === 'velero.io/secret',
    );
    const item = {
      metadata: { name: 'robot-token-a', namespace: 'app' },
      type: 'kubernetes.io/service-account-token',
    } as unknown as KubeObject;
    const restore = aRestore({ spec: { namespaceMapping: { app: 'app-2' } } });
    const input = { item, itemFromBackup: item, restore };
    expect(await action?.execute(input, { signal })).toEqual({ isSkipped: true });
    expect(asked).toEqual(['app-2']);
  });

  it('a rule that replaces nothing by something changes no image', async () => {
    const client = {
      list: () => Promise.resolve([{ metadata: { name: 'c' }, data: { a: ' ,x' } }]),
    };
    const action = openRestoreActions(client as never, 'velero').find(
      ({ name }) => name === 'velero.io/change-image-name',
    );
    const item = {
      kind: 'Pod',
      metadata: { name: 'p' },
      spec: { containers: [{ image: 'abc' }] },
    } as unknown as KubeObject;
    const input = { item, itemFromBackup: item, restore: aRestore({ spec: {} }) };
    expect((await action?.execute(input, { signal }))?.item).toEqual(item);
  });

  it('a pod is restored without the containers of kubectl debug, which nobody may create', async () => {
    const action = openRestoreActions({} as never, 'velero').find(
      ({ name }) => name === 'velero.io/pod',
    );
    const spec = { containers: [{ name: 'a' }], ephemeralContainers: [{ name: 'debugger' }] };
    const item = { kind: 'Pod', metadata: { name: 'p' }, spec } as unknown as KubeObject;
    const input = { item, itemFromBackup: item, restore: aRestore({ spec: {} }) };
    const output = await action?.execute(input, { signal });
    expect(output?.item).toMatchObject({ spec: { containers: [{ name: 'a' }] } });
    expect(output?.item).not.toHaveProperty('spec.ephemeralContainers');
  });

  it('what the API server refuses is told as it is', async () => {
    const client = { list: () => Promise.reject(new Error('no answer')) };
    const actions = openRestoreActions(client as never, 'velero');
    const action = actions.find(({ name }) => name === 'velero.io/change-storage-class');
    const item = { metadata: { name: 'p' } } as unknown as KubeObject;
    const input = { item, itemFromBackup: item, restore: aRestore({ spec: {} }) };
    const failure = await action?.execute(input, { signal }).catch((error: unknown) => error);
    expect(isCode(failure, 'AMBIGUOUS_CONFIG')).toBe(false);
    expect(messageOf(failure)).toBe('no answer');
  });
});
