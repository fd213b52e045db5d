-- Map of one neuron
-- The neuron with the best label on addition that is a range of the result. It is active on a
-- diagonal band of the operand pairs.
select op1, op2, activation
from activations
where
    subject = $subject and operator = 'add'
    and (layer, neuron) = (
        select (layer, neuron)
        from labels
        where subject = $subject and operator = 'add'
        order by kind = 'range' and quantity = 'result' desc, chance_corrected desc, layer, neuron
        limit 1
    )
order by op1, op2
