import { describe, expect, it } from 'vitest';
import {
  cacheLimitBytes,
  concurrencyOf,
  parseNodeAgentConfig,
  podResourcesOf,
} from '../../src/agent/index.ts';
import { matchesSelector } from '../../src/kube/index.ts';

const parse = (value: object): ReturnType<typeof parseNodeAgentConfig> =>
  parseNodeAgentConfig('node-agent-config', { json: JSON.stringify(value) });

/** Every key of Velero 1.18's node-agent ConfigMap. */
const EVERYTHING = {
  loadConcurrency: {
    globalConfig: 2,
    perNodeConfig: [{ nodeSelector: { matchLabels: { size: 'l' } }, number: 5 }],
    prepareQueueLength: 10,
  },
  loadAffinity: [
    {
      nodeSelector: { matchExpressions: [{ key: 'a', operator: 'In', values: ['b'] }] },
      storageClass: 'sc',
    },
  ],
  backupPVC: {
    sc: { storageClass: 'other', readOnly: true, spcNoRelabeling: true, annotations: { a: 'b' } },
  },
  restorePVC: { ignoreDelayBinding: true },
  podResources: { cpuRequest: '100m', cpuLimit: '2', memoryRequest: '128Mi', memoryLimit: '1Gi' },
  priorityClassName: 'high',
  privilegedFsBackup: true,
  cachePVC: { storageClass: 'sc', residentThresholdInMB: 100 },
  podAnnotations: { a: 'b' },
  podLabels: { c: 'd' },
};

describe('the node-agent ConfigMap', () => {
  it('takes every key that Velero knows', () => {
    const { config, warnings } = parse(EVERYTHING);
    expect(warnings).toEqual([]);
    expect(config).toEqual(EVERYTHING);
  });

  it('names keys that nobody knows, with what may be meant, and goes on without them', () => {
    const { config, warnings } = parse({
      loadConcurency: { globalConfig: 2 },
      restorePVC: { ignoredelaybinding: true },
      privilegedFsBackup: true,
    });
    expect(warnings.sort()).toEqual([
      'loadConcurency is not known; is loadConcurrency meant?',
      'restorePVC.ignoredelaybinding is not known; is ignoreDelayBinding meant?',
    ]);
    expect(config).toEqual({ restorePVC: {}, privilegedFsBackup: true });
  });

  it('refuses all that is wrong at once', () => {
    const wrong = {
      loadConcurrency: { globalConfig: 'two' },
      backupPVC: { sc: { readOnly: 'yes' } },
    };
    expect(() => parse(wrong)).toThrow(
      /loadConcurrency.globalConfig: .*number.*; backupPVC.sc.readOnly: .*boolean/,
    );
  });

  it.each([
    [undefined, /it has no data/],
    [{}, /it has no data/],
    [{ a: '{}', b: '{}' }, /more than one keys are found in its data. only expect one/],
    [{ a: '{' }, /its value is not JSON/],
  ])('refuses data %j', (data, message) => {
    expect(() => parseNodeAgentConfig('n', data)).toThrow(message);
  });

  it.each([
    [{}, {}, 1],
    [{ loadConcurrency: { globalConfig: 4 } }, {}, 4],
    [{ loadConcurrency: { globalConfig: -1 } }, {}, 1],
    [EVERYTHING, { size: 'l' }, 5],
    [EVERYTHING, { size: 's' }, 2],
  ])('data paths of a node: %#', (value, labels, expected) => {
    const fits = (selector: object): boolean => matchesSelector(selector, labels);
    expect(concurrencyOf(parse(value).config, fits)).toBe(expected);
  });

  it('takes what is said of pod resources, and refuses what is no quantity', () => {
    expect(podResourcesOf(parse(EVERYTHING).config)).toEqual({
      requests: { cpu: '100m', memory: '128Mi' },
      limits: { cpu: '2', memory: '1Gi' },
    });
    // Velero drops all of it when one is absent.
    expect(
      podResourcesOf(parse({ podResources: { memoryLimit: '1Gi', cpuLimit: '0' } }).config),
    ).toEqual({
      limits: { memory: '1Gi' },
    });
    const wrong = parse({ podResources: { memoryLimit: 'much' } }).config;
    expect(() => podResourcesOf(wrong)).toThrow(
      /podResources.memoryLimit: "much" is not a quantity such as 500m or 1Gi/,
    );
  });

  it('reads the limit of the cache, also as Velero prints it', () => {
    expect(cacheLimitBytes(undefined)).toBe(5000 * 2 ** 20);
    expect(cacheLimitBytes({ kopia: '{"cacheLimitMB": 2048}' })).toBe(2 ** 31);
    expect(cacheLimitBytes({ kopia: '{"cacheLimitMB": "1e+03"}' })).toBe(1000 * 2 ** 20);
    expect(cacheLimitBytes({ kopia: 'nonsense' })).toBe(5000 * 2 ** 20);
  });
});
