import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  cacheLimitBytes,
  concurrencyOf,
  excludeConfigIn,
  moverSettingsIn,
  parseNodeAgentConfig,
} from '../../src/agent/index.ts';
import { matchesSelector } from '../../src/base/index.ts';
import {
  MOVER_SETTINGS,
  moverSettingProblem,
  moverSettingsOf,
  moverVariables,
} from '../../src/mover/index.ts';
import { podResourcesOf } from '../../src/config/index.ts';

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
      'loadConcurency is not a known setting; did you mean loadConcurrency?',
      'restorePVC.ignoredelaybinding is not a known setting; did you mean ignoreDelayBinding?',
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
    expect(podResourcesOf(parse(EVERYTHING).config.podResources)).toEqual({
      requests: { cpu: '100m', memory: '128Mi' },
      limits: { cpu: '2', memory: '1Gi' },
    });
    // Velero drops all values if one of them is missing.
    expect(
      podResourcesOf(
        parse({ podResources: { memoryLimit: '1Gi', cpuLimit: '0' } }).config.podResources,
      ),
    ).toEqual({
      limits: { memory: '1Gi' },
    });
    const wrong = parse({ podResources: { memoryLimit: 'much' } }).config.podResources;
    expect(() => podResourcesOf(wrong)).toThrow(
      /podResources.memoryLimit: "much" is not a quantity such as 500m or 1Gi/,
    );
  });

  describe('settings of data movers', () => {
    const ALL = {
      uploadLimit: '50MiB',
      downloadLimit: '1GiB/s',
      requestsLimit: '20',
      storageStallTimeout: '2m',
      memoryLimit: '512MiB',
      cacheSize: '0',
      compression: 'zstd-fastest',
      parallelFilesUpload: '8',
      ignoreUnreadable: 'true',
    };

    it('are all there, as texts or numbers, and by storage location', () => {
      const { config, warnings } = parse({
        ...EVERYTHING,
        longshore: {
          ...ALL,
          requestsLimit: 20,
          cacheSize: 0,
          parallelFilesUpload: 8,
          ignoreUnreadable: true,
          storageLocations: { far: { uploadLimit: 1048576 }, near: ALL },
        },
      });
      expect(warnings).toEqual([]);
      const { all, locations } = moverSettingsIn(config);
      expect(all).toEqual(ALL);
      expect(locations).toEqual({ far: { uploadLimit: '1048576' }, near: ALL });
    });

    it('leave paths out of all volumes, or of those of a storage class', () => {
      const { config, warnings } = parse({
        longshore: {
          excludePaths: '.snapshot\n/lost+found',
          excludePathsByAnnotation: false,
          storageClasses: { nfs: { excludePaths: ['/.zfs', 'a,b'] }, ssd: {} },
          compression: 'zstd',
        },
      });
      expect(warnings).toEqual([]);
      expect(excludeConfigIn(config)).toEqual({
        all: '.snapshot\n/lost+found',
        storageClasses: { nfs: '/.zfs\na,b' },
        isWithoutAnnotations: true,
      });
      expect(moverSettingsIn(config)).toEqual({ all: { compression: 'zstd' }, locations: {} });
      expect(excludeConfigIn(parse({}).config)).toEqual({
        storageClasses: {},
        isWithoutAnnotations: false,
      });
      const wrong = {
        excludePaths: ['ok', 'a['],
        storageClasses: { nfs: { excludePaths: 'b\\' } },
      };
      expect(() => parse({ longshore: wrong })).toThrow(
        /longshore.excludePaths: .*"a\[" is not valid.*longshore.storageClasses.nfs.excludePaths: /,
      );
      const typo = parse({ longshore: { excludePath: ['x'] } });
      expect(typo.warnings).toEqual([
        'longshore.excludePath is not a known setting; did you mean excludePaths?',
      ]);
    });

    it('are none where nothing is said', () => {
      expect(moverSettingsIn(parse({}).config)).toEqual({ all: {}, locations: {} });
      const { config } = parse({ longshore: { storageLocations: null } });
      expect(moverSettingsIn(config)).toEqual({ all: {}, locations: {} });
    });

    it('reach the data mover by its environment, and are the same there', () => {
      const variables = moverVariables(ALL);
      expect(Object.keys(variables)).toHaveLength(MOVER_SETTINGS.length);
      expect(moverSettingsOf((name) => variables[name])).toEqual(ALL);
      variables.LONGSHORE_COMPRESSION = 'zip';
      variables.LONGSHORE_CACHE_SIZE = 'much';
      expect(() => moverSettingsOf((name) => variables[name])).toThrow(
        /LONGSHORE_CACHE_SIZE "much" is not a size such as 1GiB.*; LONGSHORE_COMPRESSION "zip" is not one of none, .*zstd/,
      );
    });

    it('that are wrong are named with what would be right, all at once', () => {
      const longshore = {
        uploadLimit: 'fast',
        requestsLimit: 0,
        compression: 'lz4',
        memoryLimit: '64MiB',
        ignoreUnreadable: 'yes',
        storageLocations: { far: { storageStallTimeout: 'soon', parallelFilesUpload: 65 } },
      };
      const message = (() => {
        try {
          return JSON.stringify(parse({ longshore }));
        } catch (error) {
          return error instanceof Error ? error.message : '';
        }
      })();
      for (const part of [
        'longshore.uploadLimit: "fast" is not a rate in bytes per second such as 50MiB',
        'longshore.requestsLimit: "0" is not a number of requests per second above 0',
        'longshore.compression: "lz4" is not one of none, gzip,',
        'longshore.memoryLimit: "64MiB" is not a size such as 512MiB, of at least 160',
        'longshore.ignoreUnreadable: "yes" is not true or false',
        'longshore.storageLocations.far.storageStallTimeout: "soon" is not a duration such as 60s',
        'longshore.storageLocations.far.parallelFilesUpload: "65" is not a whole number from 1 to 64',
      ]) {
        expect(message).toContain(part);
      }
      expect(() => parse({ longshore: { uploadLimit: true } })).toThrow(
        /longshore.uploadLimit: true is neither text nor a number/,
      );
    });

    it('that nobody knows are warned about, with what may be meant', () => {
      const longshore = {
        uploadlimit: '1MiB',
        storageLocations: { far: { compresion: 'zstd' } },
      };
      const { config, warnings } = parse({ longshore });
      expect(warnings.sort()).toEqual([
        'longshore.storageLocations.far.compresion is not a known setting; did you mean compression?',
        'longshore.uploadlimit is not a known setting; did you mean uploadLimit?',
      ]);
      expect(config).toEqual({ longshore: { storageLocations: { far: {} } } });
    });

    it('are documented, each with its variable', () => {
      const docs = readFileSync(new URL('../../docs/node-agent.md', import.meta.url), 'utf8');
      for (const setting of MOVER_SETTINGS) {
        const [variable = ''] = Object.keys(moverVariables({ [setting]: '1' }));
        const row = docs.split('\n').find((line) => line.startsWith(`| \`${setting}\` `)) ?? '';
        expect(row).toContain(`\`${variable}\``);
        const [, example = ''] = /^\| [^|]+\| `([^`]+)`/.exec(row) ?? [];
        expect(moverSettingProblem(setting, example)).toBeUndefined();
      }
      const [, text = ''] = /node-agent-config.json: \|\n([^]*?)EOF/.exec(docs) ?? [];
      const { config, warnings } = parseNodeAgentConfig('docs', { json: text });
      expect(warnings).toEqual([]);
      expect(moverSettingsIn(config).locations).toHaveProperty('offsite');
    });

    it.each([
      ['512Mi', '512MiB', undefined],
      ['500M', '500MB', undefined],
      [
        '1Gi',
        '2GiB',
        /longshore.memoryLimit: 2GiB is more than .* podResources.memoryLimit is 1Gi/,
      ],
      ['256e6', '300MB', /longshore.memoryLimit: 300MB is more than/],
    ])('a pod of %s and a data mover of %s', (pod, mover, message) => {
      const podResources = { memoryLimit: pod };
      const check = (longshore: object) => () =>
        moverSettingsIn(parse({ podResources, longshore }).config);
      const near = { storageLocations: { near: { memoryLimit: mover } } };
      if (message === undefined) {
        expect(check({ memoryLimit: mover })).not.toThrow();
        expect(check(near)).not.toThrow();
      } else {
        expect(check({ memoryLimit: mover })).toThrow(message);
        expect(check(near)).toThrow(/^longshore.storageLocations.near.memoryLimit/);
      }
    });
  });

  it('reads the limit of the cache, also as Velero prints it', () => {
    expect(cacheLimitBytes(undefined)).toBe(5000 * 2 ** 20);
    expect(cacheLimitBytes({ kopia: '{"cacheLimitMB": 2048}' })).toBe(2 ** 31);
    expect(cacheLimitBytes({ kopia: '{"cacheLimitMB": "1e+03"}' })).toBe(1000 * 2 ** 20);
    expect(cacheLimitBytes({ kopia: 'nonsense' })).toBe(5000 * 2 ** 20);
  });
});
