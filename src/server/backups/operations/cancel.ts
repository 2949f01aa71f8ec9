export { cancelOperations, withUntold } from '../../operations/cancel.ts';
