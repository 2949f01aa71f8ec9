import { CodedError } from '../base/index.ts';

/** Bytes with random access: a raw volume of a snapshot, an image, or a part of one. */
export interface Device {
  readonly sizeBytes: number;
  /**
   * Returns `lengthBytes` bytes from `offset`. They may be shared, so callers must not write into
   * them. The caller has checked that the range is within the device ({@link readDevice}). Throws
   * errors of the storage, and the reason of the signal.
   */
  read(offset: number, lengthBytes: number, signal: AbortSignal): Promise<Uint8Array>;
}

/** The data on the device is inconsistent: `DEVICE_DAMAGED`. */
export const damaged = (what: string, options?: ErrorOptions): CodedError =>
  new CodedError('DEVICE_DAMAGED', `what is on the device is damaged: ${what}`, options);

/** The data seems valid, but is not supported: `DEVICE_NOT_READ`. */
export const notRead = (what: string): CodedError => new CodedError('DEVICE_NOT_READ', what);

/** Reads a range named on the device. Throws `DEVICE_DAMAGED` if it is beyond the end. */
export function readDevice(
  device: Device,
  range: { readonly offset: number; readonly lengthBytes: number; readonly what: string },
  signal: AbortSignal,
): Promise<Uint8Array> {
  const { offset, lengthBytes, what } = range;
  if (!isWithin(device, offset, lengthBytes)) {
    throw damaged(`${what} is at byte ${offset}, and the device has ${device.sizeBytes} bytes`);
  }
  return device.read(offset, lengthBytes, signal);
}

export const isWithin = ({ sizeBytes }: Device, offset: number, lengthBytes: number): boolean =>
  Number.isSafeInteger(offset) &&
  offset >= 0 &&
  lengthBytes >= 0 &&
  offset + lengthBytes <= sizeBytes;

/** A range of a device as a device of its own. */
export function partOf(device: Device, startBytes: number, sizeBytes: number): Device {
  return {
    sizeBytes,
    read: (offset, lengthBytes, signal) => device.read(startBytes + offset, lengthBytes, signal),
  };
}
