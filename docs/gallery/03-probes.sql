-- Layers from which a probe reads the answer
-- Accuracy of a linear probe of the residual stream at the last position, after each layer. Compare
-- it with the baseline `majority_accuracy`, which is high for division.
select 'layer ' || layer as after, accuracy, operator
from probes
where subject = $subject and position = 'last'
order by layer, operator
