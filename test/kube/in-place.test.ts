import { expect, it } from 'vitest';
import {
  type DataDownload,
  inPlaceConfig,
  type InPlaceOrder,
  inPlaceOrderOf,
  isInPlace,
} from '../../src/kube/index.ts';

const asking = (dataMoverConfig: object, datamover = 'longshore'): DataDownload =>
  ({ metadata: { name: 'd' }, spec: { datamover, dataMoverConfig } }) as never;

it.each<InPlaceOrder>([
  { dryRun: false, keepExtra: false },
  { dryRun: true, keepExtra: true, maxWriteBytes: 0, claimUid: 'u', volumeUid: 'v' },
  { dryRun: false, keepExtra: true, maxWriteBytes: 10 * 2 ** 30 },
  { dryRun: false, keepExtra: false, removeFirst: true, deleteExcluded: true },
  { dryRun: false, keepExtra: true, maxWriteBytes: 8 * 2 ** 50 - 1 },
])('an order of a restore in place is read as it was written: %j', (order) => {
  expect(inPlaceOrderOf(asking(inPlaceConfig(order)))).toEqual(order);
});

it('other restores have none, also with settings of their own', () => {
  for (const config of [{}, { WriteSparseFiles: 'true', DeleteExtraFiles: 'true' }]) {
    expect(isInPlace(asking(config))).toBe(false);
    expect(inPlaceOrderOf(asking(config))).toBeUndefined();
  }
});

it('files that the backup does not have stay unless it is said', () => {
  expect(inPlaceOrderOf(asking({ 'longshore.inPlace': 'true' }))?.keepExtra).toBe(true);
});

it.each([
  [{ 'longshore.inPlace': 'yes' }, 'longshore', 'longshore.inPlace is "yes", and must be true or'],
  [{ 'longshore.inPlace': 'false' }, 'longshore', 'longshore.inPlace is "false", and must be true'],
  [{ 'longshore.dryRun': '1' }, 'longshore', 'longshore.dryRun is "1", and must be true or false'],
  [{ DeleteExtraFiles: '' }, 'longshore', 'DeleteExtraFiles is "", and must be true or false'],
  [{ 'longshore.maxWriteBytes': '1GiB' }, 'longshore', 'is "1GiB", and must be a whole number'],
  [{ 'longshore.maxWriteBytes': '9007199254740992' }, 'longshore', 'at most 9007199254740991'],
  [{}, 'velero', 'spec.datamover is "velero": a restore in place needs "longshore"'],
])('%j for %s is refused', (config, datamover, text) => {
  const download = asking({ 'longshore.inPlace': 'true', ...config }, datamover);
  expect(isInPlace(download)).toBe(true);
  expect(() => inPlaceOrderOf(download)).toThrow(text);
});
